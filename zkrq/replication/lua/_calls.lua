-- purpose: calls that name no items are executed once.  A call whose connection broke may be executed after its
-- repetition, and would take what came in between: so each has an id of its own, and the latest are remembered here.
local CALLS_BYTES = 300

local function was_executed(call)
  if call == '' then return false end
  local calls = redis.call('HGET', lead, 'calls') or ''
  if string.find(calls, call, 1, true) then return true end
  redis.call('HSET', lead, 'calls', string.sub(call .. ' ' .. calls, 1, CALLS_BYTES))
  return false
end
