#!lua flags=allow-oom
-- purpose: drop names from the set of queues that are no texts: nothing can be stored under them.
-- KEYS: server queues
-- ARGV: epoch generation / queue
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  local names = {}
  for i = first, last do names[#names + 1] = ARGV[i] end
  if #names > 0 then redis.call('SREM', queues, unpack(names)) end
  return {'OK'}
end
