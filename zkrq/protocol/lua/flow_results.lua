#!lua flags=allow-oom
-- purpose: read a page of the results of a flow's members, as far as they are known here (_flows.lua); of one whose outcome is no
-- longer kept nothing.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  legs: further queues in which it has members.
-- lost: 1 if the member was acked with a result that has been lost, else 0.
-- KEYS: server records members notes lead
-- ARGV: epoch generation flow cursor
-- reply: OK cursor stage [leg; queues] [id lost result; of each member with a result]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(flow, cursor)
  local RESULTS_MAX = 500 -- results of one page, which ends with a bundle
  local BEHIND = '>' -- before the last bundle of a page
  local r, stage = flows.stage_of(flow)
  local found, n, bytes, next_cursor = {}, 0, 0, '0'
  if stage == 'U' then return {'OK', '0', stage, {}, {}} end
  flows.each_with_results(flow, cursor ~= '0' and string.sub(cursor, 1 + #BEHIND) or nil, function(member, positions)
    for _, position in ipairs(positions) do
      local text = redis.call('HGET', notes, entry_of(member, position))
      found[n + 1], found[n + 2], found[n + 3] = id_of(member.bundle, member, position), text and 0 or 1, text or ''
      n, bytes = n + 3, bytes + #found[n + 3]
    end
    if n < 3 * RESULTS_MAX and bytes < BYTES_MAX then return false end
    next_cursor = BEHIND .. member.bundle
    return true
  end)
  return {'OK', next_cursor, stage, flows.legs(r), found}
end
