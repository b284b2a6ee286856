-- purpose: drop tombstones that are no longer needed: twice the put window old, or beyond the bytes that a queue's may
-- take.  An entry names its version, so that a later life of the same id is never touched.  One without a moment of a push is
-- not of a tombstone: it is of results of a bundle of which other items live, and goes with the last of these results.
-- A repeated put of an item whose tombstone was dropped could revive it, so puts as old as the youngest such item are
-- refused (floor_ms).  One that has a result stays until the time of that is over, and one whose items are in the history until these are
-- not, or which has a name in a flow that runs: it is put behind the others each time
-- it comes to the front.  If the bytes do not suffice, forgot_ms is the time of the last burial that is forgotten early.

local trim_tombstones
do
  -- A group that keeps the order says what has ended last, until the tombstone of that is dropped.  ordered: bundles of such
  -- groups that are dropped.
  local function forget_ended(ordered)
    local names, kept, old = {}, {}, {}
    for i, r in ipairs(ordered) do names[i] = r.group end
    for i, state in ipairs(names[1] and redis.call('HMGET', groups, unpack(names)) or {}) do
      local claims, has_members, first_placed, keeps_order, ended, _, begun, rests_us = places.read_state(state)
      if ended ~= ordered[i].bundle then
        -- something else has ended since
      elseif claims > 0 or has_members or first_placed or begun then
        append(kept, groups, names[i], places.write_state(claims, has_members, first_placed, keeps_order, nil, 0, begun, rests_us))
      else
        append(old, groups, names[i])
      end
    end
    write('HSET', groups, kept[groups])
    write('HDEL', groups, old[groups])
    if old[groups] then add_number('remembered', -old[groups].n) end
  end

  -- Return how many were looked at, and dropped or put behind the others.
  function trim_tombstones(put_window_ms, room)
    local TOMBSTONES_BYTES = 536870912 -- per queue: of single items 600 s of 4,000 removals a second
    local LEAST_AGE_MS = 60000 -- younger ones always stay, and no put that is less late is refused
    local TRIM_MAX = 1000 -- entries read in one call
    local ENTRY_BYTES = 28 -- of an entry, before the bundle; a shorter one is damaged, and is dropped
    local first_entry = redis.call('LRANGE', tombstones, '0', '0')[1]
    if not first_entry then return 0 end
    local excess = number('tombstone_bytes') - TOMBSTONES_BYTES
    local old_ms, young_ms = now_ms - 2 * put_window_ms, now_ms - math.min(LEAST_AGE_MS, put_window_ms)
    if #first_entry >= ENTRY_BYTES and struct.unpack('<d', first_entry) > (excess > 0 and math.max(old_ms, young_ms) or old_ms) then return 0 end
    local ids, named, kept, looked_at, pushed_ms, forgot_ms, freed = {}, {}, {}, 0, 0, 0, 0
    for i, entry in ipairs(redis.call('LRANGE', tombstones, 0, math.min(room, TRIM_MAX) - 1)) do
      local removed_ms, pushed_at, e, n, bytes, at = 0, 0, 0, 0, 0, #entry + 1
      if #entry >= ENTRY_BYTES then removed_ms, pushed_at, e, n, bytes, at = struct.unpack('<ddI4I4I4', entry) end
      if pushed_at ~= pushed_at or pushed_at > now_ms * 2 or pushed_at < 0 then pushed_at = 0 end
      if removed_ms > old_ms and (freed >= excess or removed_ms > young_ms) then break end
      looked_at = i
      if pushed_at > young_ms then
        append(kept, tombstones, entry) -- pushed by a clock that is ahead: dropping it would refuse the pushes of others
      else
        ids[#ids + 1], freed = string.sub(entry, at), freed + bytes
        named[#ids] = {epoch = e, n = n, pushed_at = pushed_at, bytes = bytes, removed_ms = removed_ms}
      end
    end
    freed = 0
    if #ids > 0 then
      local missed = {}
      local forgotten, ordered, texts, none, dropped, text_bytes = {}, {}, {}, {}, 0, 0
      for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
        local tombstone, r = named[i], packed and read_record(packed)
        if r then r.bundle = ids[i] end
        local is_alive, over, stays = r and string.find(r.states, ALIVE), none, false
        local is_latest = r and not is_alive and not newer(r, tombstone)
        local has_kept = r and r.own ~= '' and r.fields ~= '' and flows.keeps_results(r)
        if has_kept then
          stays = true
        elseif r and r.own ~= '' then
          over, stays = results.over(r)
        end
        local needed = is_latest and r.fields ~= '' and flows.of(r) ~= nil and flows.needs(r)
        if needed then
          stays = true
        elseif is_alive then
          stays = stays and tombstone.pushed_at == 0
        else
          stays = is_latest and r.own ~= '' and freed >= excess and (not is_expired(r, put_window_ms) or endings.has(r))
        end
        stays = stays or is_latest and freed >= excess and (has_kept or flows.keeps_name(r))
        local bytes = tombstone.bytes
        for _, entry in ipairs(over) do bytes = math.max(0, bytes - redis.call('HSTRLEN', notes, entry)) end
        if over[1] then redis.call('HDEL', notes, unpack(over)) end
        if stays then
          -- Looked at again when it has come to the front once more.
          text_bytes = text_bytes + tombstone.bytes - bytes
          append(kept, tombstones, struct.pack('<ddI4I4I4', now_ms, tombstone.pushed_at, tombstone.epoch, tombstone.n, bytes) .. ids[i])
        else
          dropped, freed = dropped + 1, freed + tombstone.bytes
          pushed_ms = math.max(pushed_ms, tombstone.pushed_at)
          if tombstone.removed_ms > old_ms then forgot_ms = math.max(forgot_ms, tombstone.removed_ms) end
          if is_latest then
            forgotten[#forgotten + 1] = ids[i]
            flows.append_dropped(missed, r)
            if places.is_ordered(r) then ordered[#ordered + 1] = r end
            for _, entry in ipairs(r.own ~= '' and results.entries(r) or {}) do append(texts, notes, entry) end
            for _, position in ipairs(r.fields ~= '' and tails.saved_in(r, 1, r.size) or {}) do
              append(texts, notes, beside.entry(r, position))
            end
          end
        end
      end
      if dropped > 0 then set_number('floor_ms', math.max(math.floor(pushed_ms) + 1, number('floor_ms'))) end
      if forgot_ms > number('forgot_ms') then set_number('forgot_ms', forgot_ms) end
      add_number('tombstone_bytes', -freed - text_bytes)
      forget_ended(ordered)
      write_numbers()
      write('HDEL', notes, texts[notes])
      write('ZREM', members, missed[members])
      if #forgotten > 0 then
        redis.call('HDEL', payloads, unpack(forgotten)) -- left by a client that died before it dropped them (cut.lua)
        redis.call('HDEL', records, unpack(forgotten))
      end
    end
    write('RPUSH', tombstones, kept[tombstones])
    redis.call('LTRIM', tombstones, looked_at, -1)
    return #ids
  end
end
