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

local function reset()
  entering = {[ready] = {}, [scheduled] = {}, [claimed] = {}, [dead] = {}}
  leaving = {[ready] = {}, [scheduled] = {}, [claimed] = {}, [dead] = {}}
  new_records, new_payloads, new_tombstones, gone = {}, {}, {}, {}
end
reset()

local function append(list, a, b)
  list[#list + 1] = a
  if b then list[#list + 1] = b end
end

local function enter_queue(id, priority, due_us)
  if due_us <= now_us then
    append(entering[ready], rank(priority, due_us), id)
    return ready
  end
  append(entering[scheduled], due_us, id)
  return scheduled
end

-- Write record r of an item whose record was in old_state (nil: unknown here).  at_us: due time, deadline, or moment
-- of death, by the state of r.
local function place(id, old_state, r, at_us)
  local home
  if r.state == 'Q' then
    r.due = at_us
    home = enter_queue(id, r.priority, at_us)
  elseif r.state == 'C' then
    append(entering[claimed], at_us, id)
    home = claimed
  elseif r.state == 'D' then
    append(entering[dead], at_us, id)
    home = dead
  else
    append(new_tombstones, struct.pack('<dI4I4', now_ms, r.epoch, r.n) .. id)
    append(gone, id)
  end
  for _, index in ipairs(old_state and HOMES[old_state] or {}) do
    if index ~= home then append(leaving[index], id) end
  end
  append(new_records, id, write_record(r))
end

-- Where the id stands now, as a moment of this clock.
local function stands_at_us(id, r)
  for _, index in ipairs(HOMES[r.state]) do
    local score = tonumber(redis.call('ZSCORE', index, id) or nil)
    if score then return index == ready and due_of(r.priority, score) or score end
  end
  return now_us
end

local function write(command, key, list)
  if #list > 0 then redis.call(command, key, unpack(list)) end
end

local function commit()
  write('HSET', payloads, new_payloads)
  for index, list in pairs(entering) do write('ZADD', index, list) end
  write('HSET', records, new_records)
  for index, list in pairs(leaving) do write('ZREM', index, list) end
  write('RPUSH', tombstones, new_tombstones)
  write('HDEL', payloads, gone)
  reset()
end
