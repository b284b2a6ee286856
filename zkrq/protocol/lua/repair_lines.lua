#!lua flags=allow-oom
-- purpose: put groups in line that have lost their place there, one page per call: they would wait for ever.  A script that
-- failed half-way, or a command by hand, leaves one.
-- How many items of a group are claimed is not counted anew, unless numbers of the lead are damaged.  Groups of which only counters are left are dropped once these
-- count nothing any more.
-- cursor: 0 to begin, then the result of the last call, until that is 0: first g and a cursor of groups, then m, then m= and
-- the group whose members were looked at last, which may be the empty one.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation cursor
-- reply: OK cursor repaired; repaired: number of groups
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(cursor)
  local PAGE = 100 -- groups looked at in one call
  local repaired, next_cursor = 0, '0'

  local function look_at(group, state)
    if grouping.repair(group, state) then repaired = repaired + 1 end
  end

  if cursor == '0' and damage.has_lead() then damage.recount(true) end
  if cursor == '0' and grouping.rest_ends_at() and number('resting') == 0 then set_number('resting', 1) end
  if string.sub(cursor, 1, 1) ~= 'm' then
    local page = redis.call('HSCAN', groups, cursor == '0' and '0' or string.sub(cursor, 2), 'COUNT', PAGE)
    for i = 1, #page[2], 2 do look_at(page[2][i], page[2][i + 1]) end
    next_cursor = page[1] ~= '0' and 'g' .. page[1] or redis.call('EXISTS', members) > 0 and 'm' or '0'
  else
    local from = cursor == 'm' and '-' or '[' .. string.sub(cursor, 3) .. '\1'
    for _ = 1, PAGE do
      local member = redis.call('ZRANGEBYLEX', members, from, '(' .. places.FLOWS, 'LIMIT', 0, 1)[1]
      if not member then break end
      local group = string.sub(member, 1, (string.find(member, '\0', 1, true) or #member + 1) - 1)
      if redis.call('HEXISTS', groups, group) == 0 then look_at(group) end
      from, next_cursor = '[' .. group .. '\1', 'm=' .. group
    end
  end
  commit()
  wake(repaired)
  return {'OK', next_cursor, repaired}
end
