-- purpose: where the id of an item stands, by its state: ready or scheduled, claimed, dead, or among the tombstones.
-- Scores are this server's clock in microseconds; ready is ordered by priority (0 to 9, higher first), then due time.
-- Writes are gathered, then made in an order of which every prefix is safe: an index may name an item that has left
-- (whoever reads an index looks at the record), but no item is ever without its index.
local PRIORITIES = 10
local PRIORITY_STEP = 562949953421312 -- 2^49 microseconds, 17 years
local FIRST_MOMENT = 1700000000000000 -- so that ten steps fit into the 53 bits of a score

local function rank(priority, due_us)
  return (PRIORITIES - 1 - priority) * PRIORITY_STEP + (due_us - FIRST_MOMENT)
end

local function due_of(priority, score)
  return score - (PRIORITIES - 1 - priority) * PRIORITY_STEP + FIRST_MOMENT
end

local HOMES = {Q = {ready, scheduled}, C = {claimed}, D = {dead}, X = {}}
local entering, leaving, new_records, new_payloads, new_tombstones, gone

local function list()
  return {n = 0}
end

local function reset()
  entering = {[ready] = list(), [scheduled] = list(), [claimed] = list(), [dead] = list()}
  leaving = {[ready] = list(), [scheduled] = list(), [claimed] = list(), [dead] = list()}
  new_records, new_payloads, new_tombstones, gone = list(), list(), list(), list()
end
reset()

local function append(to, a)
  local n = to.n + 1
  to[n], to.n = a, n
end

local function append_pair(to, a, b)
  local n = to.n
  to[n + 1], to[n + 2], to.n = a, b, n + 2
end

local function enter_queue(id, priority, due_us)
  if due_us <= now_us then
    append_pair(entering[ready], rank(priority, due_us), id)
    return ready
  end
  append_pair(entering[scheduled], due_us, id)
  return scheduled
end

-- Write the record of an item that is now in state and was in old_state (nil: unknown here).
-- at_us: due time, deadline, or moment of death, by the state.
local function place(id, old_state, state, priority, at_us, packed, version)
  local home
  if state == 'Q' then
    home = enter_queue(id, priority, at_us)
  elseif state == 'C' then
    append_pair(entering[claimed], at_us, id)
    home = claimed
  elseif state == 'D' then
    append_pair(entering[dead], at_us, id)
    home = dead
  else
    append(new_tombstones, struct.pack('<dI4I4', now_ms, version.epoch, version.n) .. id)
    append(gone, id)
  end
  if old_state == 'Q' then
    if home ~= ready then append(leaving[ready], id) end
    if home ~= scheduled then append(leaving[scheduled], id) end
  elseif old_state == 'C' and home ~= claimed then
    append(leaving[claimed], id)
  elseif old_state == 'D' and home ~= dead then
    append(leaving[dead], id)
  end
  append_pair(new_records, id, packed)
end

-- Where the id stands now, as a moment of this clock.
local function stands_at_us(id, r)
  for _, index in ipairs(HOMES[r.state]) do
    local score = tonumber(redis.call('ZSCORE', index, id) or nil)
    if score then return index == ready and due_of(r.priority, score) or score end
  end
  return now_us
end

local function write(command, key, values)
  if values.n > 0 then redis.call(command, key, unpack(values, 1, values.n)) end
end

local function commit()
  write('HSET', payloads, new_payloads)
  for index, values in pairs(entering) do write('ZADD', index, values) end
  write('HSET', records, new_records)
  for index, values in pairs(leaving) do write('ZREM', index, values) end
  write('RPUSH', tombstones, new_tombstones)
  write('HDEL', payloads, gone)
  reset()
end
