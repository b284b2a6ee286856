#!lua flags=allow-oom
-- purpose: make a server adopt an epoch; the answer also shows that it is alive and in sync.
-- KEYS: server
-- ARGV: epoch generation
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  return {'OK'}
end
