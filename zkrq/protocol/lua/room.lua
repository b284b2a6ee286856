#!lua
-- purpose: ask for memory: without the flag allow-oom, a full Redis refuses the script.
-- KEYS: server
-- ARGV: epoch generation
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  return {'OK'}
end
