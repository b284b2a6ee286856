#!lua flags=allow-oom
-- purpose: read what is known of groups: one page of all, or the named ones.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of groups.
-- due: entries in line, which may be bundles; of a named group its items, of which bundles beyond SEEN_MAX count by
-- the mean size of the others.  standing: 1 in line for a turn, 0 not: its limit is reached, or an item that keeps the
-- order is claimed; 2: its first item waits for its next attempt; -1 nothing waits.  age_ms: since the push of the first, -1 without one.
-- KEYS: server records members groups scheduled
-- ARGV: epoch generation cursor count / group
-- reply: OK cursor [group claimed due standing age_ms]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing

-- Count the queued items that entries name.
local function items_in(entries)
  local bundles, count = {}, 0
  for i, entry in ipairs(entries) do bundles[i] = (read_entry(entry)) end
  for i, packed in ipairs(bundles[1] and redis.call('HMGET', records, unpack(bundles)) or {}) do
    local _, position = read_entry(entries[i])
    if position or not packed then
      count = count + 1
    else
      local r = read_record(packed)
      count = count + (r and select(2, string.gsub(r.states, 'Q', '')) or 1)
    end
  end
  return count
end

local function tell(flat, group, state, is_named)
  local SEEN_MAX = 100 -- entries of which the items are counted
  local claims, has_members, first_placed = places.read_state(state)
  local from, behind = '[' .. group .. '\0', '(' .. group .. '\1'
  local due = has_members and redis.call('ZLEXCOUNT', members, from, behind) or 0
  local placed, standing = first_placed, 1
  if not first_placed and due > 0 then
    local member = redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, 1)[1]
    placed, standing = string.sub(member, #group + 2), 0
    if claims == 0 and redis.call('ZSCORE', scheduled, places.entry_in(placed)) then standing = 2 end
  end
  if is_named then
    local entries, listed = {}, redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, SEEN_MAX)
    for i, member in ipairs(listed) do entries[i] = places.entry_of_member(member) end
    due = #entries > 0 and math.floor(items_in(entries) * due / #entries + 0.5) or 0
    if first_placed then due = due + items_in({places.entry_in(first_placed)}) end
  elseif first_placed then
    due = due + 1
  end
  local n = #flat
  flat[n + 1], flat[n + 2], flat[n + 3], flat[n + 4] = group, claims, due, placed and standing or -1
  flat[n + 5] = placed and #placed > 8 and math.max(0, math.floor(now_ms - struct.unpack('>d', placed, 2))) or -1
end

local function operation(cursor, count)
  local flat = {}
  if first <= last then
    for i = first, last do tell(flat, ARGV[i], redis.call('HGET', groups, ARGV[i]), true) end
    return {'OK', '0', flat}
  end
  local page = redis.call('HSCAN', groups, cursor, 'COUNT', count)
  for i = 1, #page[2], 2 do tell(flat, page[2][i], page[2][i + 1]) end
  return {'OK', page[1], flat}
end
