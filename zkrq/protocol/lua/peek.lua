#!lua flags=allow-oom
-- purpose: read the first items of an index (ready, scheduled, claimed or dead), in its order, without changing
-- anything; scheduled ones in the order in which they become due.  Of groups, ready has those in line, then the others.
-- only: empty: all; = and a group: the ready items of that group.
-- KEYS: server records payloads ready scheduled members groups claimed dead notes
-- ARGV: epoch generation state count only
-- reply: OK [id position; of each item, in order: its bundle and its place there] [id record notes since payload; of each bundle, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(state, count, only)
  local SEEN_MAX = 500 -- items in one call
  count = math.min(tonumber(count), SEEN_MAX)

  local function first_due()
    local found, entries = {}, {}
    each_priority(scheduled, function(priority, score)
      local last_score = rank(priority, LAST_MOMENT)
      local page = redis.call('ZRANGEBYSCORE', scheduled, score, last_score, 'WITHSCORES', 'LIMIT', 0, count)
      for i = 1, #page, 2 do found[#found + 1] = {due_of(priority, tonumber(page[i + 1])), page[i]} end
    end)
    table.sort(found, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
    for i = 1, math.min(count, #found) do entries[i] = found[i][2] end
    return entries
  end

  -- Return the first entries that are ready: of a group, or of all.
  local function first_ready(group)
    local _, _, first_placed = places.read_state(group and redis.call('HGET', groups, group))
    local found = group and {first_placed and places.entry_in(first_placed)} or redis.call('ZRANGE', ready, 0, count - 1)
    if #found == count then return found end
    local from, behind = group and '[' .. group .. '\0' or '-', '(' .. (group and group .. '\1' or places.FLOWS)
    for _, member in ipairs(redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, count - #found)) do
      found[#found + 1] = places.entry_of_member(member)
    end
    return found
  end

  local entries, ids = {}, {}
  if count > 0 then
    local index = ({claimed = claimed, dead = dead})[state]
    if state == 'ready' then
      entries = first_ready(only ~= '' and string.sub(only, 2) or nil)
    else
      entries = index and redis.call('ZRANGE', index, 0, count - 1) or first_due()
    end
  end
  local found_places, bundles, seen = {}, {}, {}
  for i, entry in ipairs(entries) do ids[i] = read_entry(entry) end
  local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}

  local function see(r, position)
    local n = #found_places
    if n == 2 * count then return end
    found_places[n + 1], found_places[n + 2] = r.bundle, position
    if not seen[r] then
      seen[r], bundles[#bundles + 1] = true, r
    end
  end

  for i, entry in ipairs(entries) do
    local bundle, own_position = read_entry(entry)
    local r = open(bundle, held[i])
    local shown = own_position and (state == 'dead' and DEAD or REQUEUED) or state == 'claimed' and CLAIMED or QUEUED
    for position = own_position or 1, r and (own_position or r.size) or 0 do
      -- A member of a group that keeps the order may be scheduled.
      local is_later = state == 'ready' and own_position and (own_of(r, position) or 0) + r.shift > now_us
      if string.byte(r.states, position) == shown and not is_later then
        see(r, position)
      end
    end
    if #found_places == 2 * count then break end
  end
  local found, left_out = copies_of(bundles, now_us)
  return {'OK', found_places, found, left_out}
end
