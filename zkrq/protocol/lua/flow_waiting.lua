#!lua flags=allow-oom
-- purpose: list a page of the members of a flow that wait for others, by name (_flows.lua).
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- names: queue and bundle of each member that it waits for, with a slash between, separated by spaces.
-- KEYS: server records members lead
-- ARGV: epoch generation flow cursor
-- reply: OK cursor [id names; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(flow, cursor)
  local ROWS_MAX = 100 -- members on one page
  local found, last = {}, '0'
  flows.each_waiting(flow, function(r)
    if #found >= 2 * ROWS_MAX then
      last = found[#found - 1]
      return true
    end
    local _, _, names = flows.held_for(r)
    found[#found + 1], found[#found + 2] = r.bundle, names
  end, cursor ~= '0' and cursor or nil)
  return {'OK', last, found}
end
