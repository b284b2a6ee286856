-- purpose: execute calls that name no items once.  A call whose connection broke may be executed after its repetition,
-- and would take items that came in between.  So each has an id of its own, and the last ones are remembered here, the
-- very last with their items, because a repetition has to report these again.

local function was_executed(call)
  local CALLS_BYTES = 300 -- of the ids of the last calls, which are remembered
  if call == '' then return false end
  local calls = redis.call('HGET', lead, 'calls') or ''
  if string.find(calls, call, 1, true) then return true end
  calls = call .. ' ' .. calls
  for at, other in string.gmatch(calls, '()(%S+)') do
    if at + #other - 1 > CALLS_BYTES then redis.call('HDEL', lead, 'items ' .. other) end -- nothing will name them
  end
  redis.call('HSET', lead, 'calls', string.sub(calls, 1, CALLS_BYTES))
  return false
end

-- Remember the items of a call, after its decision.
local function remember_items(call, ids)
  local CALLS_WITH_ITEMS = 4 -- calls whose items are remembered
  if call == '' or #ids == 0 then return end
  redis.call('HSET', lead, 'items ' .. call, table.concat(ids, '\1'))
  local at = 0
  for other in string.gmatch(redis.call('HGET', lead, 'calls') or '', '%S+') do
    at = at + 1
    if at > CALLS_WITH_ITEMS then redis.call('HDEL', lead, 'items ' .. other) end
  end
end

local function items_of(call)
  local ids = {}
  for id in string.gmatch(redis.call('HGET', lead, 'items ' .. call) or '', '[^\1]+') do ids[#ids + 1] = id end
  return ids
end
