#!lua flags=allow-oom
-- purpose: read the first items that are queued here, to bring them to another shard, and the ids of the first ones that were
-- adopted here and wait for the decision of theirs (adopt.lua): not of those whose payloads this server lacks, because nobody else
-- would have them once their shard has let them go.
-- count: of the queued ones.
-- KEYS: server records payloads ready scheduled members expiring notes lead
-- ARGV: epoch generation count
-- reply: OK [id position; of each queued item: its bundle and its place there] [id record notes since payload; of each bundle, the payload is false where there is none] [id; of each beyond the limit of bytes] [id; of each adopted item]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(count)
  local SEEN_MAX = 200 -- queued items in one call
  local ADOPTED_MAX = 200 -- entries of adopted items looked at in each index in one call
  count = math.min(tonumber(count), SEEN_MAX)
  local found_places, bundles, adopted, seen = {}, {}, {}, {}

  local function is_whole(r, position)
    if r.whole == nil then r.whole = redis.call('HGET', payloads, r.bundle) end
    return r.whole and is_readable(r.whole, true) and payload_at(r.whole, position)
  end

  local function see(r, position)
    local id = id_of(r.bundle, r, position)
    if seen[id] then return end
    seen[id] = true
    if places.due_of_adopted(r, position) then
      if #adopted < ADOPTED_MAX and is_whole(r, position) then adopted[#adopted + 1] = id end
    elseif #found_places < 2 * count then
      local n = #found_places
      found_places[n + 1], found_places[n + 2] = r.bundle, position
      if not seen[r] then seen[r], bundles[#bundles + 1] = true, r end
    end
  end

  local function look_at(entries, name_of)
    local ids, positions = {}, {}
    for i, entry in ipairs(entries) do ids[i], positions[i] = read_entry(name_of and name_of(entry) or entry) end
    local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
    for i, bundle in ipairs(ids) do
      local r, own_position = open(bundle, held[i]), positions[i]
      for position = own_position or 1, r and (own_position or r.size) or 0 do
        local state = string.byte(r.states, position)
        if state == REQUEUED and own_position or state == QUEUED and not own_position then see(r, position) end
      end
    end
  end

  if number('queued') > 0 then
    if count > 0 then look_at(redis.call('ZRANGE', ready, 0, count - 1)) end
    if #found_places < 2 * count then
      look_at(redis.call('ZRANGEBYLEX', members, '-', '(' .. places.FLOWS, 'LIMIT', 0, count), places.entry_of_member)
    end
    if #found_places < 2 * count then look_at(redis.call('ZRANGE', scheduled, 0, count - 1)) end
    for priority = 0, PRIORITIES - 1 do -- what never comes stands at the last moment
      local at = text_of(rank(priority, LAST_MOMENT))
      look_at(redis.call('ZRANGEBYSCORE', scheduled, at, at, 'LIMIT', 0, ADOPTED_MAX))
    end
    -- What has a time to live stands at the end of that.
    local living = {}
    for i, bundle in ipairs(redis.call('ZRANGEBYSCORE', expiring, 0, '+inf', 'LIMIT', 0, ADOPTED_MAX)) do living[i] = bundle .. '\0\1' end
    look_at(living)
  end
  local found, left_out = copies_of(bundles, now_us)
  return {'OK', found_places, found, left_out, adopted}
end
