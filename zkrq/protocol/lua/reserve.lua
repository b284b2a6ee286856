#!lua flags=allow-oom
-- purpose: take, or keep, the right to repair this server, so that clients do not repair it at the same time.  This
-- saves work only: correctness never depends on it.  A server outside the view may be asked as well.
-- KEYS: server
-- ARGV: epoch generation repairer hold_ms
-- reply: OK
-- reply: TAKEN left_ms
local function operation(repairer, hold_ms)
  local held = redis.call('HMGET', server, 'repairer', 'repaired_until_ms')
  local left_ms = (tonumber(held[2]) or 0) - now_ms
  if held[1] and held[1] ~= repairer and left_ms > 0 and left_ms <= tonumber(hold_ms) then return {'TAKEN', left_ms} end
  redis.call('HSET', server, 'repairer', repairer, 'repaired_until_ms', now_ms + hold_ms)
  return {'OK'}
end
