#!lua flags=allow-oom
-- purpose: drop the payloads of removed items, once every server of the view knows that they are gone.  Dropped by the
-- removal itself they could be lost: a primary that does not know of the removal may decide the item again, and then
-- die.
-- items: their positions, a byte each; empty: all of the bundle.
-- KEYS: server records payloads
-- ARGV: epoch generation / id items
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch

local function cut(r, id, items)
  local whole = redis.call('HGET', payloads, id)
  if not whole then return end
  local named, is_left = {}, false
  for i = 1, #items do named[string.byte(items, i) + 1] = true end
  whole = payloads_of(count_of(whole), function(position)
    local is_gone = position <= r.size and not string.find(r.states, '^[QRCD]', position)
    local payload = not (is_gone and named[position]) and payload_at(whole, position) or nil
    is_left = is_left or payload ~= nil
    return payload
  end)
  if is_left then redis.call('HSET', payloads, id, whole) else redis.call('HDEL', payloads, id) end
end

local function operation()
  local ids, dropped = {}, {}
  for i = first, last, 2 do ids[#ids + 1] = ARGV[i] end

  for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
    local r, items = packed and read_record(packed), ARGV[first + 2 * i - 1]
    if r and items ~= '' then
      cut(r, ids[i], items)
    elseif not r or not string.find(r.states, '[QRCD]') then
      dropped[#dropped + 1] = ids[i]
    end
  end
  if #dropped > 0 then redis.call('HDEL', payloads, unpack(dropped)) end
  return {'OK'}
end
