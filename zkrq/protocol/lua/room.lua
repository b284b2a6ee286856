#!lua
-- purpose: tell whether this server takes what needs memory: without the flag allow-oom Redis refuses it where it is full.
-- KEYS: server
-- ARGV: epoch generation
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate
return {'OK'}
