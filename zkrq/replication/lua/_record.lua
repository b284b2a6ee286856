-- purpose: the record of an item, packed; zkrq/replication/records.py holds the same layout and the table of states.
-- Q queued (ready or scheduled, by its due time), C claimed, D dead letter, X gone (a tombstone).
-- The tail (key and note, each after its length) is carried along unread.
local FORMAT = 1
local HEAD, WHOLE = '<xI4I4c1B', '<xI4I4c1BI4I4ddI4Bc0'
local PACKED = '<BI4I4c1BI4I4ddI4B'
local TOKEN_AT = 40 -- where the length of the token stands; the token follows
local HEAD_LENGTH = 10 -- format, version, state
local NO_TAIL = '\0\0\0\0'

-- What most decisions need: version, state, priority, token.
local function read_head(packed)
  local e, n, state, priority = struct.unpack(HEAD, packed)
  local length = string.byte(packed, TOKEN_AT)
  return {epoch = e, n = n, state = state, priority = priority,
    token = string.sub(packed, TOKEN_AT + 1, TOKEN_AT + length)}
end

local function read_record(packed)
  local e, n, state, priority, attempts, failures, pushed_at, due, lease, token, at = struct.unpack(WHOLE, packed)
  return {
    epoch = e, n = n, state = state, priority = priority, attempts = attempts, failures = failures,
    pushed_at = pushed_at, due = due, lease = lease, token = token, tail = string.sub(packed, at),
  }
end

local function write_record(r)
  if r.state == 'X' then
    return struct.pack(PACKED, FORMAT, r.epoch, r.n, 'X', 0, 0, 0, 0, 0, 0, #r.token) .. r.token .. NO_TAIL
  end
  return struct.pack(PACKED, FORMAT, r.epoch, r.n, r.state, r.priority, r.attempts, r.failures, r.pushed_at, r.due,
    r.lease, #r.token) .. r.token .. r.tail
end

local function with_note(r, note)
  local key_length = struct.unpack('<H', r.tail)
  r.tail = string.sub(r.tail, 1, 2 + key_length) .. struct.pack('<H', #note) .. note
end

local function newer(a, b)
  return a.epoch > b.epoch or (a.epoch == b.epoch and a.n > b.n)
end
