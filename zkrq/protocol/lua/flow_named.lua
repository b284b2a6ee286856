#!lua flags=allow-oom
-- purpose: read what has become of bundles on one server, for which members of their flow may wait (_flows.lua).
-- KEYS: server records members lead
-- ARGV: epoch generation / id
-- reply: OK [state; of each: A all items were acked, M one was removed otherwise, D one is a dead letter, L one lives, U it is not known]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation()
  local states = {}
  for i = first, last do states[#states + 1] = flows.state_of(ARGV[i]) end
  return {'OK', states}
end
