-- purpose: read bundles for another server: id, record, notes, since, and payloads, false if there are none.
-- since: what to add to the record's moments, beside the present moment of a clock, to have them by that clock.  It
-- counts from a moment by this server's clock (0: from now): copies that count from one moment each, on both servers,
-- keep the order of their items.
-- A bundle whose record is damaged is left out, and payloads that are: the ids of all these are returned as well.
-- Beyond a number of bytes of payloads and notes, the ids of the remaining bundles are returned instead, to be read by another
-- call.
-- bundles: those that are known, opened (_bundle.lua).
local function copies_of(bundles, from_us)
  local found, left_out, unreadable, bytes, n = {}, {}, {}, 0, 0
  for bundle in pairs(order.damaged) do unreadable[#unreadable + 1] = bundle end
  for _, r in ipairs(bundles) do
    local has_payload, is_full = string.find(r.states, '[QRCD]'), bytes > BYTES_MAX
    if not is_full then beside.recall(r) end -- they may be many mebibytes, of bundles that are all left out
    local texts = beside.pack(r)
    local size = (has_payload and redis.call('HSTRLEN', payloads, r.bundle) or 0) + #texts
    bytes = bytes + size
    if is_full and (r.own ~= '' or r.fields ~= '') or size > 0 and bytes > BYTES_MAX and bytes > size then
      left_out[#left_out + 1] = r.bundle
    else
      local whole = has_payload and redis.call('HGET', payloads, r.bundle) or false
      if whole and not is_readable(whole, true) then unreadable[#unreadable + 1], whole = r.bundle, false end
      found[n + 1], found[n + 2] = r.bundle, string.sub(r.packed, SHIFT_BYTES + 1)
      found[n + 3], found[n + 4] = texts, string.format('%.0f', shift_of(r) - from_us)
      found[n + 5] = whole
      n = n + 5
    end
  end
  return found, left_out, unreadable
end

local function known_of(ids)
  local bundles, held = {}, #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
  for i, id in ipairs(ids) do bundles[#bundles + 1] = open(id, held[i]) end
  return bundles
end
