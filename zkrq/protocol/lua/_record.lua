-- purpose: pack and unpack the record of a bundle, the items that one call pushed together; zkrq/protocol/records.py has
-- the same layout and the table of states.
-- Columns have one entry per item: state (Q queued, R queued with a moment of its own, C claimed, D dead letter, X gone,
-- F refused: never accepted), row of its last claim, attempts. P is not an item: the record of PAUSE says that the queue
-- is paused; that of LIMITS has the queue's limits as its tail (_limits.lua); that of DELETED says that the queue was
-- deleted, at the moment of its push.
-- Moments are by the clock of the server that decided the record, in microseconds. Each server keeps the difference to
-- its own clock (shift) in front of the record; it is never shipped and never compared.
local SHIFT_BYTES = 8
local ROW, ROW_BYTES = '<BI4I4d', 17 -- of a claim: owner, request, lease, deadline
local OWN, OWN_BYTES = '<BdI4', 13 -- what an item does not share with its bundle: position, moment, failures
local NONE = 127 -- row 0 in the column; the rows follow it, so that no byte means something in a pattern
local MARK = 16 -- flags in the byte of the priority: it expires (1 * MARK), has a key (2 * MARK), is in a group (4 * MARK),
-- in one that keeps the order (8 * MARK)
local EXPIRES = 1
local BYTES_MAX = 1048576 -- greatest sum of payloads in one reply, unless the first one is larger
local PAUSE, LIMITS, DELETED = '\1pause', '\1limits', '\1deleted' -- no item has such an id
local REPLACED = '=' -- before the ids of items in the row of the one in their place (push_decided.lua)
local ALIVE = '[QRCDP]'
local QUEUED, REQUEUED, CLAIMED, DEAD, GONE, REFUSED = 81, 82, 67, 68, 88, 70 -- the bytes of Q, R, C, D, X, F

local tails = {} -- one name for what stands behind the entries of items: fields, each with its kind, a letter, and the tail
do
  -- Of each item with a saved state (_notes.lua): position, number of the save within the present claim.
  local SAVED, SAVE, SAVE_BYTES = 'S', '<BI4', 5

  -- Find one kind: return where its bytes begin and end; without it nil, and where it is to be inserted.
  local function find(packed, kind)
    local at = 1
    while at <= #packed do
      local named, length = struct.unpack('<c1I2', packed, at)
      if named == kind then return at + 3, at + 2 + length end
      if named > kind then break end
      at = at + 3 + length
    end
    return nil, at
  end

  -- Return the bytes of one kind, nil if the record has none.
  function tails.field(r, kind)
    if r.fields == '' then return nil end
    local from, to = find(r.fields, kind)
    return from and string.sub(r.fields, from, to)
  end

  -- Write those of one kind; empty: the record has none.  They are ordered by kind, and those of unknown kinds stay.
  function tails.set_field(r, kind, bytes)
    local from, to = find(r.fields, kind)
    local before = string.sub(r.fields, 1, from and from - 4 or to - 1)
    local behind = string.sub(r.fields, from and to + 1 or to)
    r.fields = before .. (bytes == '' and '' or struct.pack('<c1I2', kind, #bytes) .. bytes) .. behind
  end

  -- Tell whether they fill their place.
  function tails.are_sound(packed)
    local at, before = 1, ''
    while at + 2 <= #packed do
      local kind, length = struct.unpack('<c1I2', packed, at)
      if kind <= before then return false end
      at, before = at + 3 + length, kind
    end
    return at == #packed + 1
  end

  -- Return the positions of the items of a run that have a saved state, in order.
  function tails.saved_in(r, from, to)
    local saves, positions = tails.field(r, SAVED) or '', {}
    for at = 1, #saves, SAVE_BYTES do
      local position = string.byte(saves, at)
      if position >= from and position <= to then positions[#positions + 1] = position end
    end
    return positions
  end

  -- Return the number of the last save of the present claim of an item, 0 without one; nil if it has no saved state.
  function tails.save_of(r, position)
    local saves = tails.field(r, SAVED) or ''
    for at = 1, #saves, SAVE_BYTES do
      local of, number_of_save = struct.unpack(SAVE, saves, at)
      if of == position then return number_of_save end
    end
  end

  -- Write this number of an item; nil: it has no saved state any more.
  function tails.set_save(r, position, number_of_save)
    local saves, parts, own = tails.field(r, SAVED) or '', {}, number_of_save and struct.pack(SAVE, position, number_of_save) or ''
    for at = 1, #saves, SAVE_BYTES do
      local of = string.byte(saves, at)
      if of > position and own ~= '' then
        parts[#parts + 1], own = own, ''
      end
      if of ~= position then parts[#parts + 1] = string.sub(saves, at, at + SAVE_BYTES - 1) end
    end
    tails.set_field(r, SAVED, table.concat(parts) .. own)
  end

  -- Tell whether saved states are of items in their order.
  function tails.are_saves_sound(r)
    local saves, before = tails.field(r, SAVED) or '', 0
    if #saves % SAVE_BYTES ~= 0 then return false end
    for at = 1, #saves, SAVE_BYTES do
      local position = string.byte(saves, at)
      if position <= before or position > r.size then return false end
      before = position
    end
    return true
  end
end

local read_record, write_record, has_tail, has_key
do
  local KEYED, GROUPED, ORDERED = 2, 4, 8 -- further flags
  local FORMAT = 2
  local GROUPED_FORMAT = 3 -- of a record that ends with its group: clients that know none fail loudly
  local FIELDS_FORMAT = 4 -- of one that has fields: the same
  local HEAD = 'I4I4BBdddd'
  local LIFE_BYTES = 16 -- of a tail, after its key: when the item expires, its time to live
  local FINITE = 2 ^ 60 -- microseconds: no moment is as far away

  local function is_finite(moment)
    return moment > -FINITE and moment < FINITE -- false of what is no number
  end

  -- Tell whether the rows name owners that are there, and what items do not share is of items in their order.
  local function are_parts_sound(r)
    for at = 1, #r.rows, ROW_BYTES do
      local owner, _, _, moment = struct.unpack(ROW, r.rows, at)
      if not r.row_owners[owner] or not is_finite(moment) then return false end
    end
    local before = 0
    for at = 1, #r.own, OWN_BYTES do
      local position, moment = struct.unpack(OWN, r.own, at)
      if position <= before or position > r.size or not is_finite(moment) then return false end
      before = position
    end
    return true
  end

  -- Tell whether each item in such a state has a moment of its own.
  local function have_moments(r)
    local at = string.find(r.states, '[RD]')
    while at do
      local found = false
      for i = 1, #r.own, OWN_BYTES do found = found or string.byte(r.own, i) == at end
      if not found then return false end
      at = string.find(r.states, '[RD]', at + 1)
    end
    return true
  end

  -- Tell whether each claimed item names a row.
  local function have_rows(r)
    local from, to = string.find(r.states, 'C+')
    while from do
      local unnamed = string.find(r.named, '\127', from, true)
      if unnamed and unnamed <= to then return false end
      from, to = string.find(r.states, 'C+', to + 1)
    end
    return true
  end

  -- Tell whether everything else can rely on what was read.  ending: where what was read ends.
  local function is_sound(r, ending, length)
    if ending ~= length and not (r.states == 'P' and ending < length) or string.find(r.states, '[^QRCDXFP]') then return false end
    local others = r.rows == '' and '[^\127]' or '[^\127-' .. string.char(math.min(255, NONE + #r.rows / ROW_BYTES)) .. ']'
    if r.priority > 9 or string.find(r.named, others) then return false end -- a byte of the column that names no row
    if not (is_finite(r.pushed_at) and is_finite(r.due) and is_finite(r.clock) and is_finite(r.soonest) and is_finite(r.shift)) then
      return false
    end
    if (r.rows ~= '' or r.own ~= '') and not are_parts_sound(r) then return false end
    if r.fields ~= '' and not tails.are_saves_sound(r) then return false end
    return have_rows(r) and (not string.find(r.states, '[RD]') or have_moments(r))
  end

  -- Tell whether an item has a time to live or a key, which its record has in its tail.
  function has_tail(r)
    return r.marks % GROUPED > 0
  end

  function has_key(r)
    return r.marks % GROUPED >= KEYED
  end

  -- Read a record; nil, or an error, if it is damaged.
  local function parse(packed, shift)
    local at = 1
    if not shift then shift, at = struct.unpack('<d', packed) end
    local format = string.byte(packed, at)
    if format ~= FORMAT and format ~= GROUPED_FORMAT and format ~= FIELDS_FORMAT then return nil end
    local epoch, n, marked, count, pushed_at, due, clock, soonest
    epoch, n, marked, count, pushed_at, due, clock, soonest, at = struct.unpack('<x' .. HEAD, packed, at)
    local size = count == 0 and 1 or count
    local row_owners, owner_count = {}, string.byte(packed, at + 4 * size)
    local states, named = string.sub(packed, at, at + size - 1), string.sub(packed, at + size, at + 2 * size - 1)
    local attempts = string.sub(packed, at + 2 * size, at + 4 * size - 1)
    at = at + 4 * size + 1
    for i = 1, owner_count do
      local length = string.byte(packed, at)
      row_owners[i] = string.sub(packed, at + 1, at + length)
      at = at + 1 + length
    end
    local rows_at, rows_end = at, at + ROW_BYTES * string.byte(packed, at)
    local own_end = rows_end + 1 + OWN_BYTES * string.byte(packed, rows_end + 1)
    local marks, tail_at, own_fields = math.floor(marked / MARK), own_end + 1, ''
    if format == FIELDS_FORMAT then
      own_fields, tail_at = struct.unpack('<Hc0', packed, tail_at)
      if not tails.are_sound(own_fields) then return nil end
    end
    local tail_end = tail_at - 1
    local group, order, claim_n
    if marks % GROUPED > 0 then
      tail_end = tail_at + string.byte(packed, tail_at) + LIFE_BYTES
      local expires_us, ttl_us = struct.unpack('<dd', packed, tail_end - LIFE_BYTES + 1)
      if size > 1 or not (is_finite(expires_us) and is_finite(ttl_us)) then return nil end
    end
    local ending = tail_end
    if marks >= GROUPED then
      group, order, at = struct.unpack('<Bc0d', packed, tail_end + 1)
      if not is_finite(order) then return nil end
      if marks >= ORDERED then
        claim_n, at = struct.unpack('<d', packed, at)
        if not is_finite(claim_n) then return nil end
      end
      ending = at - 1
    elseif states == 'P' then
      tail_end = #packed -- the text of the limits
    end
    local r = {
      epoch = epoch, n = n, priority = marked % MARK, marks = marks, count = count, size = size,
      pushed_at = pushed_at, due = due, soonest = soonest, states = states, named = named,
      attempts = attempts, row_owners = row_owners, tail = string.sub(packed, tail_at, tail_end),
      clock = clock, shift = shift, rows = string.sub(packed, rows_at + 1, rows_end), own = string.sub(packed, rows_end + 2, own_end),
      fields = own_fields, group = group, order = order, claim_n = claim_n,
    }
    return is_sound(r, ending, #packed) and r or nil
  end

  -- Read a record as it is stored: nil if it is damaged, or of another version of zkrq.  Or read it as a client sends it (shift
  -- given): then that is an error of the call.
  function read_record(packed, shift)
    local done, r = pcall(parse, packed, shift)
    if done and r then return r end
    if shift then error('a record was sent that is damaged, or of another version of zkrq') end
  end

  function write_record(r)
    local row_owners = ''
    for _, owner in ipairs(r.row_owners) do row_owners = row_owners .. string.char(#owner) .. owner end
    local tail = r.group and r.tail .. struct.pack('<Bc0d', #r.group, r.group, r.order) or r.tail
    if r.claim_n then tail = tail .. struct.pack('<d', r.claim_n) end
    local format = r.group and GROUPED_FORMAT or FORMAT
    if r.fields ~= '' then format, tail = FIELDS_FORMAT, struct.pack('<H', #r.fields) .. r.fields .. tail end
    return struct.pack('<B' .. HEAD, format, r.epoch, r.n, r.priority + r.marks * MARK, r.count, r.pushed_at, r.due, r.clock,
      r.soonest) .. r.states .. r.named .. r.attempts .. string.char(#r.row_owners) .. row_owners
      .. string.char(#r.rows / ROW_BYTES) .. r.rows .. string.char(#r.own / OWN_BYTES) .. r.own .. tail
  end
end

-- Return key, the moment at which the item expires (0: never), and its time to live; only a bundle of one has a tail.
-- That of LIMITS is something else.
function tails.read(tail)
  if tail == '' then return '', 0, 0 end
  local key, expires_us, ttl_us = struct.unpack('<Bc0dd', tail)
  return key, expires_us, ttl_us
end

function tails.packed(key, expires_us, ttl_us)
  return string.char(#key) .. key .. struct.pack('<dd', expires_us, ttl_us)
end

-- Return what to add to the moments of a record to have them by this clock.  A record that was decided here, or arrived, in
-- the future is of before this clock was set back: then its moments count from now.
local function shift_of(r)
  return math.min(r.shift, now_us - r.clock)
end

local function newer(a, b)
  return a.epoch > b.epoch or (a.epoch == b.epoch and a.n > b.n)
end

-- Tell whether a tombstone no longer counts: it does for twice the put window, and as long as it has a result
-- (_results.lua).  When it is dropped does not matter.
local function is_expired(r, put_window_ms)
  if string.find(r.states, ALIVE) or r.due + r.shift > now_us - 2000 * put_window_ms then return false end
  for at = 1, #r.own, OWN_BYTES do
    local _, removed_at, ttl_ms = struct.unpack(OWN, r.own, at)
    if removed_at + r.shift + ttl_ms * 1000 > now_us then return false end
  end
  return true
end

-- Read the id of an item whose bundle may be marked or not: its bundle, and its position there, below 112.
local function parts_of(id)
  local rest = string.match(id, '^zkrq%-(.*)$') or id
  local bundle, position = string.match(rest, '^([0-9a-f]+%-[0-9a-f]+%-[0-9a-f]+)~([0-6][0-9a-f])$')
  if not bundle then -- of a bundle that was placed on another shard than the first
    bundle, position = string.match(rest, '^([0-9a-f]+%-[0-9a-f]+%-[0-9a-f]+@[a-z0-9_%-]+)~([0-6][0-9a-f])$')
  end
  if not bundle then -- of one that has a name in a flow
    bundle, position = string.match(id, '^zkrq%-([%w_.:%-]+%.%d+)~([0-6][0-9a-f])$')
  end
  if bundle then return string.sub(id, 1, #id - 3), tonumber(position, 16) + 1 end
  return id, 1
end

-- Read the id of an item: its bundle, and its position there; zkrq/protocol/calls/rows.py does the same.
local function item_at(id)
  if string.sub(id, 1, 5) == 'zkrq-' then return parts_of(id) end
  return id, 1
end

local function id_of(bundle, r, position)
  return r.count == 0 and bundle or string.format('%s~%02x', bundle, position - 1)
end
