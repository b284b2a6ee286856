#!lua flags=allow-oom
-- purpose: count the items of a queue by state.
-- KEYS: server ready scheduled claimed dead
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock
local due = redis.call('ZCOUNT', scheduled, '-inf', now_us)
return {'OK', redis.call('ZCARD', ready) + due, redis.call('ZCARD', scheduled) - due, redis.call('ZCARD', claimed),
  redis.call('ZCARD', dead)}
