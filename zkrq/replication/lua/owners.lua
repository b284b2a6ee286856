#!lua flags=allow-oom
-- purpose: name the owners that have claimed here and were not retired since.
-- KEYS: server owners
-- ARGV: epoch generation
-- reply: OK [owner]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate
return {'OK', redis.call('HKEYS', owners)}
