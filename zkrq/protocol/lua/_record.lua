-- purpose: pack and unpack the record of an item; zkrq/protocol/records.py has the same layout and the table of states.
-- Q queued (ready or scheduled, by its due time), C claimed, D dead letter, X gone (a tombstone); P is not an item: the
-- record of PAUSE says that the queue is paused.
-- The tail (key and note, each after its length, then the time to live) is carried along unread.
local FORMAT = 1
local HEAD, WHOLE = '<xI4I4c1BI4I4d', '<xI4I4c1BI4I4ddI4Bc0'
local PACKED = '<BI4I4c1BI4I4ddI4B'
-- Positions of single fields, for work on every item: reading a field takes a fraction of reading a record. TOKEN_AT is
-- the length of the token; the token follows.
local VERSION_AT, N_AT, STATE_AT, PRIORITY_AT, FAILURES_AT, PUSHED_AT, DUE_AT, TOKEN_AT = 2, 6, 10, 11, 16, 20, 28, 40
local QUEUED, CLAIMED, GONE = string.byte('QCX', 1, 3)
local HEAD_LENGTH = 10 -- format, version, state
local NO_TAIL = '\0\0\0\0'
local MARK = 16 -- flags in the byte of the priority: it expires (1 * MARK), it has a key (2 * MARK)
local EXPIRES, KEYED = 1, 2
local HAS_PAYLOAD = {Q = true, C = true, D = true}
local BYTES_MAX = 1048576 -- greatest sum of payloads in one reply, unless the first one is larger
local PAUSE = '\1pause' -- no item has such an id
local REFUSED = 'refused' -- token of the tombstone that a refused push leaves, and of no claim

-- Read what most decisions need: version, state, priority, token; marks are for place (_index.lua).
local function read_head(packed)
  local e, n, state, priority, _, _, pushed_at = struct.unpack(HEAD, packed)
  local length, marks = string.byte(packed, TOKEN_AT), 0
  if priority >= MARK then priority, marks = priority % MARK, math.floor(priority / MARK) end
  return {epoch = e, n = n, state = state, priority = priority, marks = marks, pushed_at = pushed_at,
    token = string.sub(packed, TOKEN_AT + 1, TOKEN_AT + length)}
end

local function read_record(packed)
  local e, n, state, priority, attempts, failures, pushed_at, due, lease, token, at = struct.unpack(WHOLE, packed)
  local marks = 0
  if priority >= MARK then priority, marks = priority % MARK, math.floor(priority / MARK) end
  return {
    epoch = e, n = n, state = state, priority = priority, marks = marks, attempts = attempts, failures = failures,
    pushed_at = pushed_at, due = due, lease = lease, token = token, tail = string.sub(packed, at),
  }
end

-- Write the record of a removed item: a tombstone.  Its due time is the time of the burial, by the clock of the server
-- that decided it, and stays the same however often it is decided again.
local function write_gone(epoch, n, token, buried_us)
  return struct.pack(PACKED, FORMAT, epoch, n, 'X', 0, 0, 0, 0, buried_us, 0, #token) .. token .. NO_TAIL
end

-- A tombstone counts for twice the put window.  An older one that is still stored means an unknown id, so it does not
-- matter when it is dropped.
local function is_expired(packed, now_us, put_window_ms)
  return string.byte(packed, STATE_AT) == GONE and struct.unpack('<d', packed, DUE_AT) <= now_us - 2000 * put_window_ms
end

local function write_record(r)
  if r.state == 'X' then return write_gone(r.epoch, r.n, r.token, r.due) end
  return struct.pack(PACKED, FORMAT, r.epoch, r.n, r.state, r.priority + r.marks * MARK, r.attempts, r.failures,
    r.pushed_at, r.due, r.lease, #r.token) .. r.token .. r.tail
end

-- Return key, note, and the milliseconds that the item may live (nil: no limit).
local function read_tail(tail)
  local key, at = struct.unpack('<Hc0', tail)
  local note, last = struct.unpack('<Hc0', tail, at)
  return key, note, last <= #tail and struct.unpack('<d', tail, last) or nil
end

local function with_note(r, note)
  local key_length, note_length = struct.unpack('<H', r.tail), nil
  note_length = struct.unpack('<H', r.tail, 3 + key_length)
  r.tail = string.sub(r.tail, 1, 2 + key_length) .. struct.pack('<H', #note) .. note
    .. string.sub(r.tail, 5 + key_length + note_length)
end

local function is_newer(packed, other)
  local e, n, other_e, other_n = struct.unpack('<I4I4', packed, VERSION_AT)
  other_e, other_n = struct.unpack('<I4I4', other, VERSION_AT)
  return e > other_e or (e == other_e and n > other_n)
end

local function newer(a, b)
  return a.epoch > b.epoch or (a.epoch == b.epoch and a.n > b.n)
end
