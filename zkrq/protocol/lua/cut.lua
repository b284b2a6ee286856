#!lua flags=allow-oom
-- purpose: drop the payloads of removed items, once every server of the view knows that they are gone.  Dropped by the
-- removal itself they could be lost: a primary that does not know of the removal may decide the item again, and then
-- die.
-- items: their positions, a byte each; empty: all of the bundle.
-- KEYS: server records payloads notes
-- ARGV: epoch generation / id items
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  local ids, positions_of = {}, {}
  for i = first, last, 2 do ids[#ids + 1], positions_of[#positions_of + 1] = ARGV[i], ARGV[i + 1] end
  cut_payloads(ids, positions_of)
  return {'OK'}
end
