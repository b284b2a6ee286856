#!lua flags=allow-oom
-- purpose: name the queues that ever had an item here.
-- KEYS: server queues
-- ARGV: epoch generation
-- reply: OK [queue]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate
return {'OK', redis.call('SMEMBERS', queues)}
