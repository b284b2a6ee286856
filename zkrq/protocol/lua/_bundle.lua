-- purpose: work on the items of a bundle by runs: neighbours that share their state and their row.

-- Return the last position of the run of equal bytes that begins at a position.
local function run_end(column, from)
  return (string.find(column, '[^' .. string.sub(column, from, from) .. ']', from) or #column + 1) - 1
end

-- Call visit(from, to, state, row) with each run between two positions.
local function each_run(r, from, to, visit)
  while from <= to do
    local last = math.min(run_end(r.states, from), run_end(r.named, from), to)
    visit(from, last, string.byte(r.states, from), string.byte(r.named, from) - NONE)
    from = last + 1
  end
end

local set
do
  local function filled(column, from, to, byte)
    local filling = string.rep(string.char(byte), to - from + 1)
    if #filling == #column then return filling end
    return string.sub(column, 1, from - 1) .. filling .. string.sub(column, to + 1)
  end

  -- A run that ended outside would make the columns longer than the bundle, and the record unreadable.
  function set(r, from, to, state, row)
    assert(from >= 1 and from <= to and to <= #r.states, 'mistake of zkrq: a run ends outside of its bundle')
    r.states = filled(r.states, from, to, state)
    if row then r.named = filled(r.named, from, to, row + NONE) end
  end
end

-- -- claims --------------------------------------------------------------------------------------------------------

-- Return owner, request number, lease in milliseconds, deadline.
local function row_at(r, row)
  local owner, seq, lease_ms, deadline = struct.unpack(ROW, r.rows, (row - 1) * ROW_BYTES + 1)
  return r.row_owners[owner], seq, lease_ms, deadline
end

-- A request's name; the number is 0 for a call that is not a claim (_calls.lua).
local function token_at(r, row)
  local owner, seq = row_at(r, row)
  return seq == 0 and owner or owner .. '/' .. string.format('%.0f', seq)
end

-- Tell whether an item is claimed under this row.
local function is_live(r, row)
  if row + NONE > 255 then return false end -- a beginning (rowset.add)
  local name, at = string.char(row + NONE), 0
  repeat
    at = string.find(r.named, name, at + 1, true)
    if at and string.byte(r.states, at) == CLAIMED then return true end
  until not at
  return false
end

-- Tell whether a bundle has an item that is claimed by a request.
local function holds(r, token)
  for row = 1, #r.rows / ROW_BYTES do
    if token_at(r, row) == token and is_live(r, row) then return true end
  end
  return false
end

-- Return when a claim began, and whether a row of its own says so: its deadline less its lease, until it is extended.
local function began_at(r, row)
  local owner, seq, lease_ms, deadline = struct.unpack(ROW, r.rows, (row - 1) * ROW_BYTES + 1)
  for at = 1, #r.rows, ROW_BYTES do
    local other_owner, other_seq, other_lease_ms, moment = struct.unpack(ROW, r.rows, at)
    if other_owner == owner and other_seq == seq and other_lease_ms == 0 then return moment, true end
  end
  return deadline - lease_ms * 1000, false
end

-- Keep when a claim began, before its lease is another one: in a row without a lease that no column names.
local function note_beginning(r, row)
  local moment, is_noted = began_at(r, row)
  if is_noted or #r.rows >= 255 * ROW_BYTES then return end
  local owner, seq = struct.unpack(ROW, r.rows, (row - 1) * ROW_BYTES + 1)
  r.rows = r.rows .. struct.pack(ROW, owner, seq, 0, moment)
end

local rowset = {} -- of a bundle: one name for all, because Lua allows 200 in a library
do
  -- Drop rows that no column names, and owners that no row names.  A row that is named is a request that may be repeated;
  -- what an item has replaced (push_decided.lua) is kept for good.  The beginnings of claims that are named come last, so
  -- that the numbers of the others stay small enough for a column.  Return how many come before them.
  local function drop_unused(r)
    local rows, row_owners, new_row, new_owner = {}, {}, {[string.char(NONE)] = string.char(NONE)}, {}
    local requests, beginnings = {}, {}
    for row = 1, #r.rows / ROW_BYTES do
      local name = row + NONE <= 255 and string.char(row + NONE)
      local packed = string.sub(r.rows, (row - 1) * ROW_BYTES + 1, row * ROW_BYTES)
      local owner, seq, lease_ms = struct.unpack(ROW, packed)
      if name and string.find(r.named, name, 1, true) or string.sub(r.row_owners[owner], 1, 1) == REPLACED then
        if not new_owner[owner] then
          row_owners[#row_owners + 1] = r.row_owners[owner]
          new_owner[owner] = #row_owners
        end
        rows[#rows + 1] = string.char(new_owner[owner]) .. string.sub(packed, 2)
        if name then new_row[name] = string.char(#rows + NONE) end
        requests[string.sub(packed, 1, 5)] = true
      elseif seq > 0 and lease_ms == 0 then
        beginnings[#beginnings + 1] = packed
      end
    end
    local count = #rows
    for _, packed in ipairs(beginnings) do
      if requests[string.sub(packed, 1, 5)] then
        rows[#rows + 1] = string.char(new_owner[string.byte(packed)]) .. string.sub(packed, 2)
      end
    end
    r.named, r.rows, r.row_owners = string.gsub(r.named, '.', new_row), table.concat(rows), row_owners
    return count
  end

  -- Add the row of a claim; return its number.
  function rowset.add(r, owner, seq, lease_ms, deadline)
    local behind = ''
    if #r.rows >= r.size * ROW_BYTES then
      local count = drop_unused(r)
      r.rows, behind = string.sub(r.rows, 1, count * ROW_BYTES), string.sub(r.rows, count * ROW_BYTES + 1)
    end
    local index = 1
    while r.row_owners[index] and r.row_owners[index] ~= owner do index = index + 1 end
    r.row_owners[index] = owner
    local rows = r.rows .. struct.pack(ROW, index, seq, lease_ms, deadline)
    r.rows = rows .. behind
    return #rows / ROW_BYTES
  end
end

-- Return the row of a request or a call, nil if there is none.
function rowset.find(r, token)
  for row = 1, #r.rows / ROW_BYTES do
    if token_at(r, row) == token then return row end
  end
end

-- Return the row that names a call which is not a claim (_calls.lua).
function rowset.of_call(r, token)
  return rowset.find(r, token) or rowset.add(r, token, 0, 0, 0)
end

function rowset.set(r, row, lease_ms, deadline)
  local at = (row - 1) * ROW_BYTES
  r.rows = string.sub(r.rows, 1, at + 5) .. struct.pack('<I4d', lease_ms, deadline) .. string.sub(r.rows, at + ROW_BYTES + 1)
end

-- Change the attempts of a run by +1 or -1, within 0 and 65535.
local function count_attempts(r, from, to, by)
  if r.size == 1 then
    r.attempts = struct.pack('<H', math.max(0, math.min(65535, struct.unpack('<H', r.attempts) + by)))
    return
  end
  -- Usually all have the same number, so one is computed for all.
  local first, before = string.sub(r.attempts, 2 * from - 1, 2 * from), string.sub(r.attempts, 2 * from - 1, 2 * to)
  if before == string.rep(first, to - from + 1) then
    local after = struct.pack('<H', math.max(0, math.min(65535, struct.unpack('<H', first) + by)))
    after = string.rep(after, to - from + 1)
    r.attempts = #after == #r.attempts and after
      or string.sub(r.attempts, 1, 2 * from - 2) .. after .. string.sub(r.attempts, 2 * to + 1)
    return
  end
  local changed = {}
  local run = string.gsub(before, '..', function(packed)
    local after = changed[packed]
    if not after then
      after = struct.pack('<H', math.max(0, math.min(65535, struct.unpack('<H', packed) + by)))
      changed[packed] = after
    end
    return after
  end)
  r.attempts = string.sub(r.attempts, 1, 2 * from - 2) .. run .. string.sub(r.attempts, 2 * to + 1)
end

local function attempts_at(r, position)
  return (struct.unpack('<H', r.attempts, 2 * position - 1))
end

-- -- what an item does not share -----------------------------------------------------------------------------------

local own_of, set_own, drop_own
do
  -- Return where an item's own entry begins, or would begin; and whether it is there.
  local function find_own(r, position)
    local low, high = 0, #r.own / OWN_BYTES
    while low < high do
      local middle = math.floor((low + high) / 2)
      if string.byte(r.own, middle * OWN_BYTES + 1) < position then low = middle + 1 else high = middle end
    end
    return low * OWN_BYTES + 1, string.byte(r.own, low * OWN_BYTES + 1) == position
  end

  -- Return an item's own moment (due, or died) and its failures; nil, 0 if it shares all with its bundle.
  function own_of(r, position)
    if r.own == '' then return nil, 0 end
    local at, found = find_own(r, position)
    if not found then return nil, 0 end
    local _, moment, failures = struct.unpack(OWN, r.own, at)
    return moment, failures
  end

  -- Tell whether all entries are of items before this one, as usually where many are settled together.
  local function are_before(r, position)
    return r.own == '' or string.byte(r.own, #r.own - OWN_BYTES + 1) < position
  end

  function set_own(r, position, moment, failures)
    if are_before(r, position) then
      r.own = r.own .. struct.pack(OWN, position, moment, failures)
      return
    end
    local at, found = find_own(r, position)
    r.own = string.sub(r.own, 1, at - 1) .. struct.pack(OWN, position, moment, failures)
      .. string.sub(r.own, found and at + OWN_BYTES or at)
  end

  function drop_own(r, from, to)
    if are_before(r, from) then return end
    local at, behind = find_own(r, from), find_own(r, to + 1)
    r.own = string.sub(r.own, 1, at - 1) .. string.sub(r.own, behind)
  end
end

places.MOVED = 'M' -- in the row of an item that another shard has adopted (cancel.lua), before the id of the call

-- Tell whether an item is gone from here because another shard has adopted it.
function places.has_left(r, position)
  local row = string.byte(r.states, position) == GONE and string.byte(r.named, position) - NONE or 0
  if row == 0 then return false end
  local owner, seq = row_at(r, row)
  return seq == 0 and string.sub(owner, 1, 1) == places.MOVED
end

-- An item that was adopted from another shard is scheduled, until that has decided that it is here, for a moment that never
-- comes: as much later than it is due (adopt.lua).
places.NEVER_US = 2 ^ 52

-- Return when such an item is due, and its failures; nil for any other, also for what is held for a flow (_flows.lua).
function places.due_of_adopted(r, position)
  if string.byte(r.states, position) ~= REQUEUED or tails.field(r, 'W') then return nil end
  local moment, failures = own_of(r, position)
  if moment + r.shift < places.NEVER_US then return nil end
  return moment - places.NEVER_US, failures
end

-- Queue the items of a run again, in their places: with their bundle, or each at its own moment.
local function requeue(r, from, to, row)
  set(r, from, to, QUEUED, row)
  if r.own == '' then return end
  for position = from, to do
    if own_of(r, position) then set(r, position, position, REQUEUED) end
  end
end

-- -- decisions -----------------------------------------------------------------------------------------------------

-- Return how the rank of an entry in its group begins (_groups.lua): priority and order, which no clock of a server changes;
-- of unordered items the moment of the push is the order.  nil without a group.
local function standing_of(r)
  if r.group and not r.standing then
    r.standing = struct.pack('>Bd', 9 - r.priority, r.order ~= 0 and math.abs(r.order) or r.pushed_at)
  end
  return r.standing
end

-- Read a bundle once, for all that a call does to it; nil if it is unknown, or damaged: then damaged names it, and what is
-- decided about it is above all that was decided before.
local function open(bundle, packed)
  local r = opened[bundle]
  if r ~= nil then return r or nil end
  if packed == nil then packed = redis.call('HGET', records, bundle) end
  if not packed then
    opened[bundle] = false
    return nil
  end
  r = places.is_text(bundle) and read_record(packed)
  if not r then
    order.damaged[bundle], opened[bundle] = true, false
    return nil
  end
  r.bundle, r.packed = bundle, packed
  opened[bundle], order[#order + 1] = r, r
  return r
end

-- Read the id of an item that may be stored.  Bundles were not marked in the past, and an id of the caller's may look
-- like that of an item of such a bundle.
local function stored_at(id)
  local bundle, position = parts_of(id)
  if bundle == id or string.sub(id, 1, 5) == 'zkrq-' then return bundle, position end
  local r = not open(id) and open(bundle)
  if r and r.count > 0 then return bundle, position end
  return id, 1
end

local begin, change
do
  -- Remember a bundle as it is stored, before it is changed: place (_index.lua) writes the difference.
  local function as_stored(r)
    return {
      states = r.states, named = r.named, row_owners = r.row_owners, rows = r.rows, own = r.own, due = r.due, shift = r.shift,
      soonest = r.soonest, priority = r.priority, size = r.size, pushed_at = r.pushed_at, group = r.group,
      order = r.order, claim_n = r.claim_n, fields = r.fields,
    }
  end

  -- Put a record in the place of the one that is held, nil if there is none.
  function begin(bundle, r, held)
    r.bundle, r.begun = bundle, true
    if held then
      r.before, held.changed = held.before or not held.begun and as_stored(held) or nil, false
    end
    opened[bundle], order[#order + 1] = r, r
    return r
  end

  -- Have a bundle written at the end of the call.
  function change(r)
    if not r.changed and not r.begun then r.before = as_stored(r) end
    r.changed = true
  end
end

local touch
do
  local MEND_STEP = 65536 -- what a decision about a damaged record adds to its n: above all that was decided of it before

  -- Convert all moments of a record to this server's clock.
  local function rebase(r, shift)
    r.due = r.due + shift
    if r.soonest > 0 then r.soonest = r.soonest + shift end
    if r.rows ~= '' then
      local rows = {}
      for row = 1, #r.rows / ROW_BYTES do
        local owner, seq, lease_ms, deadline = struct.unpack(ROW, r.rows, (row - 1) * ROW_BYTES + 1)
        rows[row] = struct.pack(ROW, owner, seq, lease_ms, deadline + shift)
      end
      r.rows = table.concat(rows)
    end
    if r.own ~= '' then
      local own = {}
      for i = 1, #r.own, OWN_BYTES do
        local position, moment, failures = struct.unpack(OWN, r.own, i)
        own[#own + 1] = struct.pack(OWN, position, moment + shift, failures)
      end
      r.own = table.concat(own)
    end
    if r.marks % 2 == EXPIRES then
      local key, expires_us, ttl_us = tails.read(r.tail)
      r.tail = tails.packed(key, expires_us + shift, ttl_us)
    end
    r.shift = 0
  end

  -- Decide about a bundle: all that a call changes belongs to its next version, under this epoch.
  function touch(r)
    change(r)
    if r.decided then return end
    if r.fields ~= '' then order.has_flows = true end
    local shift = shift_of(r)
    if shift ~= 0 then rebase(r, shift) end
    r.decided, r.epoch, r.n, r.clock = true, epoch, r.n + (order.damaged[r.bundle] and MEND_STEP or 1), now_us
  end
end

-- Every server must hold what is reported about a bundle, so a record of an earlier epoch is decided again.
local function tell_as_is(r)
  if r.epoch < epoch then touch(r) else r.told = true end
end

-- Remove the items of a run.
local function remove(r, from, to, row, state)
  touch(r)
  drop_own(r, from, to)
  set(r, from, to, state or GONE, row)
end
