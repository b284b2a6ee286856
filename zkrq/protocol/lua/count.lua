#!lua flags=allow-oom
-- purpose: count the items of a queue by state.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index
local due = 0
each_priority(scheduled, function(priority, score)
  due = due + redis.call('ZCOUNT', scheduled, score, rank(priority, now_us))
end)
return {'OK', redis.call('ZCARD', ready) + due, redis.call('ZCARD', scheduled) - due, redis.call('ZCARD', claimed),
  redis.call('ZCARD', dead)}
