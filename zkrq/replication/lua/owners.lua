#!lua flags=allow-oom
-- purpose: name the owners that have claimed here and were not retired since; every client asks this every few
-- seconds, so it also tells a silent queue from a server that was stopped (_lease.lua).
-- KEYS: server owners lead
-- ARGV: epoch generation
-- reply: OK [owner]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock lease
leading_since_us()
return {'OK', redis.call('HKEYS', owners)}
