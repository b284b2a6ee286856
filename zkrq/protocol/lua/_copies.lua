-- purpose: read items for another server: id, record, left_ms and payload, false if there is none.
-- left_ms counts from a moment by this server's clock (0: from now), with microseconds as its fraction: copies that
-- count from one moment each, on both servers, keep the order of their items.  After a space, the time until the item
-- expires.
-- Beyond a number of bytes of payloads, the ids of the remaining items are returned instead, to be read by another
-- call.
local counted_from_us = clock == '0' and now_us or tonumber(clock)

local function left_of(id, r)
  local left_ms = string.format('%.3f', (stands_at_us(id, r) - counted_from_us) / 1000)
  local expires_us = r.marks % 2 == EXPIRES and tonumber(redis.call('ZSCORE', expiring, id) or nil)
  if not expires_us then return left_ms end
  return left_ms .. string.format(' %.3f', (math.abs(expires_us) - counted_from_us) / 1000)
end

-- packed_of(i): the i-th id's record, nil or false if it is unknown.
local function copies_of(ids, packed_of)
  local found, left_out, bytes = {}, {}, 0
  for i, id in ipairs(ids) do
    local packed = packed_of(i)
    if packed then
      local r = read_head(packed)
      local size = HAS_PAYLOAD[r.state] and redis.call('HSTRLEN', payloads, id) or 0
      bytes = bytes + size
      if size > 0 and bytes > BYTES_MAX and bytes > size then
        left_out[#left_out + 1] = id
      else
        local payload = HAS_PAYLOAD[r.state] and redis.call('HGET', payloads, id) or false
        local at = #found
        found[at + 1], found[at + 2] = id, packed
        found[at + 3] = left_of(id, r)
        found[at + 4] = payload
      end
    end
  end
  return found, left_out
end
