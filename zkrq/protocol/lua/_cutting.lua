-- purpose: drop payloads of removed items, as cut.lua does for a call of its own.  Other calls carry a list of them along:
-- of each bundle the length of its id (two bytes), its id, the number of items (a byte), their positions (a byte each).
local cut_payloads, cut_listed
do
  local function cut(r, id, items)
    local whole = redis.call('HGET', payloads, id)
    local count = whole and is_readable(whole)
    if not count then return end
    local named, is_left = {}, false
    for i = 1, #items do named[string.byte(items, i) + 1] = true end
    whole = payloads_of(count, function(position)
      local is_gone = position <= r.size and not string.find(r.states, '^[QRCD]', position)
      local payload = not (is_gone and named[position]) and payload_at(whole, position) or nil
      is_left = is_left or payload ~= nil
      return payload
    end)
    if is_left then redis.call('HSET', payloads, id, whole) else redis.call('HDEL', payloads, id) end
  end

  -- Drop the saved states of items that are gone, of those that are named.
  local function cut_saved(r, items)
    local named, entries = {}, {}
    for i = 1, #items do named[string.byte(items, i) + 1] = true end
    for _, position in ipairs(tails.saved_in(r, 1, r.size)) do
      local is_gone = not string.find(r.states, '^[QRCD]', position)
      if is_gone and (items == '' or named[position]) then entries[#entries + 1] = beside.entry(r, position) end
    end
    if entries[1] then redis.call('HDEL', notes, unpack(entries)) end
  end

  -- Drop the payloads of these bundles' items; no items: of all.  An item that is not gone here keeps its payload.
  function cut_payloads(ids, positions_of)
    local dropped = {}
    for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
      local r = packed and read_record(packed)
      if r and r.fields ~= '' then
        r.bundle = ids[i]
        cut_saved(r, positions_of[i])
      end
      if packed and not r then
        -- It is damaged: what it says of its items is not known.
      elseif r and positions_of[i] ~= '' then
        cut(r, ids[i], positions_of[i])
      elseif not r or not string.find(r.states, '[QRCD]') then
        dropped[#dropped + 1] = ids[i]
      end
    end
    if #dropped > 0 then redis.call('HDEL', payloads, unpack(dropped)) end
  end

  -- After commit, so that what the call itself removes counts.
  function cut_listed(cuts)
    if cuts == '' then return end
    local ids, positions_of, at, id, items = {}, {}, 1, nil, nil
    while at <= #cuts do
      id, items, at = struct.unpack('<Hc0Bc0', cuts, at)
      ids[#ids + 1], positions_of[#positions_of + 1] = id, items
    end
    cut_payloads(ids, positions_of)
  end
end
