-- purpose: since when this server has led the queue without a gap.  After a change of the view, or when its clock has
-- jumped (the server was stopped), every claim gets one full lease from then on before it may expire.
-- Every client looks at every queue more often than that (owners.lua), so a longer silence counts as a jump.
local SILENCE_MS = 15000

-- The moment, and whether the queue has large payloads (_sizes.lua).
local function leading_since_us()
  local seen = redis.call('HMGET', lead, 'epoch', 'seen_ms', 'since_us', 'large')
  local since = tonumber(seen[3])
  local silence = now_ms - (tonumber(seen[2]) or 0)
  if tonumber(seen[1]) ~= epoch or not since or silence < 0 or silence > SILENCE_MS then
    since = now_us
    redis.call('HSET', lead, 'epoch', epoch, 'since_us', since)
  end
  redis.call('HSET', lead, 'seen_ms', now_ms)
  return since, seen[4]
end
