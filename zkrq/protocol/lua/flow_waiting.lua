#!lua flags=allow-oom
-- purpose: list a page of the members of a flow that wait for others, by name, or of those that stand for inner flows which have not
-- ended (_flows.lua).
-- letter: N wait for others; I stand for inner flows.  cursor: 0 to begin, then the result of the last call, until that is 0.
-- names: queue and bundle of each member that it waits for, with a slash between, separated by spaces; or the inner flow.
-- KEYS: server records members lead
-- ARGV: epoch generation flow letter cursor
-- reply: OK cursor [id names; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(flow, letter, cursor)
  local ROWS_MAX = 100 -- members on one page
  local found, last = {}, '0'
  flows.each_named(letter, flow, function(r)
    if #found >= 2 * ROWS_MAX then
      last = found[#found - 1]
      return true
    end
    found[#found + 1], found[#found + 2] = r.bundle, flows.nested(r) or select(3, flows.held_for(r))
  end, nil, cursor ~= '0' and cursor or nil)
  return {'OK', last, found}
end
