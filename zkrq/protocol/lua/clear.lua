#!lua flags=allow-oom
-- purpose: decide the removal of items that are ready or scheduled and were pushed up to a moment; claimed ones stay
-- with their owners.  Looks at count entries from the cursor on: first at scheduled ones, which may become ready
-- meanwhile, then at members of groups, which may take their place in line, and last at ready ones.  Beside a group's entry
-- it looks at the first members of each priority again: what came before the group's first has sent it back there.
-- only: empty: all items; = and a group: those of the group.
-- Items pushed later are skipped, so that the calls of one clearing end, whatever is pushed.
-- trim: 1 to drop old tombstones as well.  call: id of this call (_calls.lua).
-- before_ms: the moment; on the first page, whose cursor is empty, this server's clock if that is later.
-- cursor: s or r for scheduled or ready, score and entry of the last item skipped there; m and the member looked at last;
-- s: from the beginning.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation put_window_ms trim count call before_ms cursor only
-- reply: OK executed_before removed before_ms cursor [id record notes since; of each bundle concerned]; the cursor is empty at the end, removed: number of items
-- A repetition reports what the first try removed.
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, trim, count, call, before_ms, cursor, only)
  local executed_before = was_executed(call)
  local removed, removed_count, seen = {}, 0, {}
  local moment_ms, room = tonumber(before_ms), tonumber(count)
  local looks = 2 * room + PRIORITIES + 1 -- at members beside ready: more than a group takes of which nothing is removed
  local group = only ~= '' and string.sub(only, 2) or nil
  if cursor == '' then moment_ms, cursor = math.max(moment_ms, now_ms), 's' end

  local function remove_all(r, position)
    local row
    each_run(r, position or 1, position or r.size, function(from, to, state)
      if state == QUEUED and not position or state == REQUEUED and position then
        touch(r)
        row = row or rowset.of_call(r, call)
        remove(r, from, to, row)
        removed_count = removed_count + to - from + 1
      end
    end)
    if not seen[r] then
      seen[r], removed[#removed + 1] = true, r.bundle
    end
  end

  -- Remove an item, or return true if it stays.
  local function visit(r, position)
    if r.pushed_at > moment_ms or group and r.group ~= group then return true end
    remove_all(r, position)
  end

  -- Remove members of a group.  Those of one priority stand in the order of their pushes, so if one stays, the rest of its
  -- priority need not be looked at: many groups may have many newer members.
  local function visit_members(of_group)
    local from = '[' .. of_group .. '\0'
    while looks > 0 do
      local member = redis.call('ZRANGEBYLEX', members, from, '(' .. of_group .. '\1', 'LIMIT', 0, 1)[1]
      if not member then return end
      looks = looks - 1
      local stays = each_in(members, {member}, 'Q', 'R', visit, places.entry_of_member)
      local begins = string.sub(member, 1, #of_group + 1)
      from = stays and '[' .. begins .. string.char(string.byte(member, #begins + 1) + 1) or '(' .. member
    end
  end

  -- The same beside its entry in line.
  local function visit_first(r, position)
    if r.group and (not group or r.group == group) then visit_members(r.group) end
    return visit(r, position)
  end

  -- Remove items of an index that follow the last skipped entry; return the score and name of the new last skipped one.
  local function clear(index, score, passed)
    local offset = 0
    if redis.call('ZSCORE', index, passed) == score then
      offset = redis.call('ZRANK', index, passed) + 1
    elseif score ~= '' then
      offset = redis.call('ZCOUNT', index, '-inf', '(' .. score)
    end
    local entries, score_of = places.with_scores(redis.call('ZRANGE', index, offset, offset + room - 1, 'WITHSCORES'))
    local is_cut = each_in(index, entries, 'Q', 'R', function(r, position, entry)
      local stays = (index == ready and visit_first or visit)(r, position)
      if looks <= 0 then return true end -- not all members beside it were looked at
      if stays then score, passed = score_of[entry], entry end
    end)
    room = is_cut and 0 or room - #entries
    return score, passed
  end

  -- Remove members that follow the one looked at last; return the new one.
  local function clear_members(passed)
    local from = passed ~= '' and '(' .. passed or group and '[' .. group .. '\0' or '-'
    local behind = '(' .. (group and group .. '\1' or places.FLOWS)
    local found = redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, room)
    each_in(members, found, 'Q', 'R', function(r, position) visit(r, position) end, places.entry_of_member)
    room = room - #found
    return found[#found] or passed
  end

  if not executed_before then
    local at, score, passed = string.match(cursor, '^(%a)(%S*) ?(.*)$')
    if at == 's' then
      score, passed = clear(scheduled, score, passed)
      if room > 0 then at, score, passed = 'm', '', '' end
    elseif at == 'm' then
      passed = string.sub(cursor, 3)
    end
    if at == 'm' and room > 0 then
      passed = clear_members(passed)
      if room > 0 then at, passed = 'r', '' end
    end
    if at == 'r' and room > 0 then
      if group then
        local _, _, first_placed = places.read_state(redis.call('HGET', groups, group))
        each_in(ready, {first_placed and places.entry_in(first_placed)}, 'Q', 'R', function(r, position) visit_first(r, position) end)
        if looks <= 0 then room = 0 end
      else
        score, passed = clear(ready, score, passed)
      end
    end
    cursor = room > 0 and '' or at .. score .. ' ' .. passed
  end
  for _, bundle in ipairs(executed_before and items_of(call) or {}) do
    local r = open(bundle)
    local found = false
    each_run(r or {}, 1, r and r.size or 0, function(from, to, state, row)
      if state == GONE and row > 0 and token_at(r, row) == call then
        found, removed_count = true, removed_count + to - from + 1
      end
    end)
    if found then tell_as_is(r) end
  end
  commit()
  wake(readied) -- for a group that waited for what is removed
  remember_items(call, removed)
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', executed_before and 1 or 0, removed_count, moment_ms, cursor, decisions()}
end
