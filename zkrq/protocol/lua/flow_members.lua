#!lua flags=allow-oom
-- purpose: read what is left of a flow on one server (_flows.lua): letters of its kinds, and bundles that hold it up.
-- KEYS: server records members
-- ARGV: epoch generation flow
-- reply: OK kinds [id; of some bundles of which a member lives, is a dead letter, or was removed otherwise than by an ack]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(flow)
  local BUNDLES_MAX = 100 -- bundles that are named in one reply
  local kinds, bundles = flows.left(flow, BUNDLES_MAX)
  return {'OK', kinds, bundles}
end
