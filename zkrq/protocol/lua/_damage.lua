-- purpose: deal with what is damaged: count anew what it counted for, and keep its bytes aside.
-- The bytes of an entry are kept under its id: a head (places.KEPT), the reason, the record as it is stored, the payloads, the
-- notes.
local damage = {} -- one name for all, because Lua allows 200 in a library
do
  local RECOUNT_MAX = 5000 -- bundles, entries of indexes and groups that are counted in one call; if there are more, what is counted stays
  local POSITIONS = 112 -- of a bundle's items, beyond BUNDLE_MAX
  local NOTED = 240 -- positions of texts beside them, those of saved states behind the others

  -- Return the records that these entries of indexes name, each once.
  local function named_by(entries)
    local bundles, is_known = {}, {}
    for _, entry in ipairs(entries) do
      local bundle = read_entry(entry)
      if not is_known[bundle] then
        is_known[bundle], bundles[#bundles + 1] = true, bundle
      end
    end
    local found, AT_ONCE = {}, 1000
    for from = 1, #bundles, AT_ONCE do
      local to = math.min(from + AT_ONCE - 1, #bundles)
      for i, packed in ipairs(redis.call('HMGET', records, unpack(bundles, from, to))) do
        local r = packed and read_record(packed)
        if r then found[#found + 1] = r end
      end
    end
    return found
  end

  local function count(r, states)
    return select(2, string.gsub(r.states, states, ''))
  end

  -- Correct how many items of each group are claimed.
  local function recount_groups(claimed_of)
    local cursor, PAGE = '0', 1000
    repeat
      local page = redis.call('HSCAN', groups, cursor, 'COUNT', PAGE)
      for i = 1, #page[2], 2 do
        local group, claims = page[2][i], claimed_of[page[2][i]] or 0
        local had, has_members, first_placed, keeps_order, ended, order, begun, rests_us, is_damaged = places.read_state(page[2][i + 1])
        if had ~= claims or is_damaged then
          local state = places.write_state(claims, has_members, first_placed, keeps_order, ended, order, begun, rests_us)
          redis.call('HSET', groups, group, state)
          grouping.repair(group, state)
        end
      end
      cursor = page[1]
    until cursor == '0'
  end

  -- Tell whether the lead has something else in the place of a number.
  function damage.has_lead()
    number('queued')
    for name, value in pairs(numbers) do
      local read = tonumber(value or 0)
      if name ~= 'limits' and name ~= 'begun' and not (read and read - read == 0) then return true end
    end
    return false
  end

  -- Count again what the lead and groups say of items, after a record was replaced whose states are not known.
  -- all: every number of the lead that is none is made one.
  function damage.recount(all)
    number('queued')
    for name, value in pairs(all and numbers or {}) do
      local read = tonumber(value or 0)
      if name ~= 'limits' and name ~= 'begun' and not (read and read - read == 0) then set_number(name, 0) end
    end
    set_number('dead', redis.call('ZCARD', dead))
    if redis.call('ZCARD', claimed) <= RECOUNT_MAX then
      local claims, of_group = 0, {}
      for _, r in ipairs(named_by(redis.call('ZRANGE', claimed, 0, -1))) do
        local n = count(r, 'C')
        claims = claims + n
        if r.group then of_group[r.group] = (of_group[r.group] or 0) + n end
      end
      set_number('claimed', claims)
      if redis.call('HLEN', groups) <= RECOUNT_MAX then recount_groups(of_group) end
    end
    if redis.call('ZCARD', ready) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', members) <= RECOUNT_MAX then
      local entries = redis.call('ZRANGE', ready, 0, -1)
      for _, entry in ipairs(redis.call('ZRANGE', scheduled, 0, -1)) do entries[#entries + 1] = entry end
      for _, member in ipairs(redis.call('ZRANGEBYLEX', members, '-', '(' .. places.FLOWS)) do entries[#entries + 1] = places.entry_of_member(member) end
      local queued = 0
      for _, r in ipairs(named_by(entries)) do queued = queued + count(r, '[QR]') end
      set_number('queued', queued)
    end
    commit()
  end

  -- Tell whether what is known of a bundle is damaged here: its record, or payloads of items that are alive.
  function damage.has(id)
    local r = open(id)
    if not r then return order.damaged[id] == true end
    local whole = string.find(r.states, '[QRCD]') and redis.call('HGET', payloads, id)
    return whole and not is_readable(whole, true) or false
  end

  -- Pack all that this server has of a bundle.
  function damage.pack(id, at_ms, reason)
    local texts, fields = {}, {}
    for position = 1, NOTED do fields[position] = id .. '\0' .. string.char(position) end
    for position, text in ipairs(redis.call('HMGET', notes, unpack(fields))) do
      if text then texts[#texts + 1] = struct.pack('<BH', position, #text) .. text end
    end
    local record, whole, noted = redis.call('HGET', records, id) or '', redis.call('HGET', payloads, id) or '', table.concat(texts)
    return struct.pack(places.KEPT, at_ms, #record, #whole, #noted, #reason) .. reason .. record .. whole .. noted
  end

  -- Remove a bundle from everything that names it.  What names it by more than its id is found stale by its readers.
  function damage.remove(id)
    local entries = {id}
    for position = 1, POSITIONS do entries[position + 1] = id .. '\0' .. string.char(position) end
    redis.call('ZREM', ready, unpack(entries))
    redis.call('ZREM', scheduled, unpack(entries))
    redis.call('ZREM', claimed, unpack(entries))
    redis.call('ZREM', dead, unpack(entries))
    redis.call('ZREM', recent, unpack(entries))
    redis.call('ZREM', expiring, unpack(entries))
    for position = POSITIONS + 1, NOTED do entries[position + 1] = id .. '\0' .. string.char(position) end
    redis.call('HDEL', notes, unpack(entries))
    redis.call('HDEL', payloads, id)
    redis.call('HDEL', records, id)
    opened[id] = false
  end
end
