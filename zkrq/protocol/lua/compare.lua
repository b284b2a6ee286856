#!lua flags=allow-oom
-- purpose: compare another server's heads (heads.lua) with the records here.
-- KEYS: server records payloads
-- ARGV: epoch generation / id head
-- reply: OK [position; of each that is unknown here] [position; of each that is known otherwise, or lacks a payload]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation()
  local ids = {}
  for i = first, last, 2 do ids[#ids + 1] = ARGV[i] end
  local held = redis.call('HMGET', records, unpack(ids))
  local unknown, different = {}, {}

  -- The payloads of a bundle are looked at, though no item is refused or gone: a record from another server may have
  -- replaced one of which that was true.  Those of an item that is alone may be large, and are there or not.
  local function is_whole(id, packed)
    local r = read_record(packed)
    if not r then return false end
    if not string.find(r.states, '[QRCD]') then return true end
    if r.size == 1 and not string.find(r.states, '[XF]') then return redis.call('HEXISTS', payloads, id) == 1 end
    return not lacks_payloads(r, redis.call('HGET', payloads, id))
  end

  for position, id in ipairs(ids) do
    local packed, head = held[position], ARGV[first + 2 * position - 1]
    if not packed then
      unknown[#unknown + 1] = position
    elseif places.head_of(packed) ~= head or not is_whole(id, packed) then
      different[#different + 1] = position
    end
  end
  return {'OK', unknown, different}
end
