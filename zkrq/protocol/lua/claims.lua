#!lua flags=allow-oom
-- purpose: list the bundles of which one owner holds items, as this server knows them, one page per call.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server records holdings
-- ARGV: epoch generation owner cursor
-- reply: OK cursor [id]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(owner, cursor)
  local next_cursor, held = claims_page(owner, cursor)
  local ids = {}
  for i, r in ipairs(held) do ids[i] = r.bundle end
  return {'OK', next_cursor, ids}
end
