#!lua flags=allow-oom
-- purpose: list a page of the flows here, and of legs: those about which there is something to do (P), for which something is held
-- (V, W), or whose outcome is kept (E); one that runs, and for which that is, is named twice.
-- cursor: 0 to begin, then the result of the last call, until that is 0: kind and name of the last flow.
-- kinds: these letters, in their order.
-- stage, kinds of each: as in flow.lua.  is_due: 1 if something may be decided about it now, or opened.  outcome, done, died, missed:
-- of one that has ended, and how many members were acked, dead and removed otherwise then.
-- KEYS: server records members lead
-- ARGV: epoch generation cursor count kinds
-- reply: OK cursor [name stage kinds is_due outcome done died missed; of each flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor, count, kinds)
  local ROWS_MAX = 200 -- flows on one page
  local names, last = flows.named(cursor == '0' and '' or cursor, math.min(tonumber(count), ROWS_MAX), kinds)
  local found = {}
  for _, name in ipairs(names) do
    local flow, stage = flows.stage_of(name)
    local is_closed, n = stage == 'E' and flow.states ~= 'P', #found
    local left = is_closed and '' or flows.kinds(name)
    local is_due = not is_closed and flows.is_due(name, function(kind) return string.find(left, kind, 1, true) ~= nil end, true)
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = name, stage, left, is_due and 1 or 0
    found[n + 5], found[n + 6], found[n + 7], found[n + 8] = '', 0, 0, 0
    if stage == 'E' then found[n + 5], found[n + 6], found[n + 7], found[n + 8] = flows.outcome(flow) end
  end
  return {'OK', last or '0', found}
end
