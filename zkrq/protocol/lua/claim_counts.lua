#!lua flags=allow-oom
-- purpose: count the claims of each owner, one page of bundles per call.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server records claimed
-- ARGV: epoch generation cursor
-- reply: OK cursor [owner count; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor)
  local PAGE = 100 -- bundles read in one call
  local page, tally, position_of = redis.call('ZSCAN', claimed, cursor, 'COUNT', PAGE), {}, {}
  for i = 1, #page[2], 2 do
    local r = open(page[2][i])
    if r then
      each_run(r, 1, r.size, function(from, to, state, row)
        if state ~= CLAIMED then return end
        local owner = row_at(r, row)
        local at = position_of[owner] or #tally + 2
        position_of[owner], tally[at - 1], tally[at] = at, owner, (tally[at] or 0) + to - from + 1
      end)
    end
  end
  return {'OK', page[1], tally}
end
