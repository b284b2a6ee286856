#!lua flags=allow-oom
-- purpose: list a page of the flows that run, or for which something is held; one for which that is after its end is on two pages.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- stage, kinds: as in flow.lua.
-- KEYS: server records members
-- ARGV: epoch generation cursor count
-- reply: OK cursor [name stage kinds; of each flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor, count)
  local names, last = flows.named(cursor == '0' and '' or cursor, tonumber(count))
  local found = {}
  for i, name in ipairs(names) do
    found[3 * i - 2], found[3 * i - 1], found[3 * i] = name, select(2, flows.stage_of(name)), (flows.left(name, 1))
  end
  return {'OK', last or '0', found}
end
