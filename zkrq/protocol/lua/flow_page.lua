#!lua flags=allow-oom
-- purpose: list a page of the flows about which there is something to do here, their legs too, or for which something is held; one
-- that runs, and for which that is, is named twice.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- stage, kinds: as in flow.lua.  is_due: 1 if something may be decided about it now, or opened.
-- KEYS: server records members lead
-- ARGV: epoch generation cursor count
-- reply: OK cursor [name stage kinds is_due; of each flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor, count)
  local ROWS_MAX = 200 -- flows on one page
  local names, last = flows.named(cursor == '0' and '' or cursor, math.min(tonumber(count), ROWS_MAX))
  local found, n = {}, 0
  for _, name in ipairs(names) do
    local kinds = flows.kinds(name)
    local is_due = flows.is_due(name, function(kind) return string.find(kinds, kind, 1, true) ~= nil end, true)
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = name, select(2, flows.stage_of(name)), kinds, is_due and 1 or 0
    n = n + 4
  end
  return {'OK', last or '0', found}
end
