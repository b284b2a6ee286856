#!lua flags=allow-oom
-- purpose: make a server adopt an epoch, which also shows that it answers and that it is in sync.
-- KEYS: server
-- ARGV: epoch generation
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate
return {'OK'}
