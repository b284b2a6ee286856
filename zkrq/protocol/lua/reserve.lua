#!lua flags=allow-oom
-- purpose: take, or keep, the right to repair this server, so that clients do not do it at the same time; no more than
-- a courtesy, since correctness never depends on there being only one.  Asked of a server outside the view as well.
-- KEYS: server
-- ARGV: epoch generation repairer hold_ms
-- reply: OK
-- reply: TAKEN left_ms
-- include: clock
local held = redis.call('HMGET', server, 'repairer', 'repaired_until_ms')
local left_ms = tonumber(held[2] or 0) - now_ms
if held[1] and held[1] ~= repairer and left_ms > 0 and left_ms <= tonumber(hold_ms) then return {'TAKEN', left_ms} end
redis.call('HSET', server, 'repairer', repairer, 'repaired_until_ms', now_ms + hold_ms)
return {'OK'}
