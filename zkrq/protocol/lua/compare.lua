#!lua flags=allow-oom
-- purpose: compare another server's heads (heads.lua) with the records here.
-- KEYS: server records payloads
-- ARGV: epoch generation / id head
-- reply: OK [position; of each that is unknown here] [position; of each that is known otherwise, or lacks its payload]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record
local ids = {}
for i = first, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', records, unpack(ids))
local unknown, different = {}, {}
for position, id in ipairs(ids) do
  local head = ARGV[first + 2 * position - 1]
  if not held[position] then
    unknown[#unknown + 1] = position
  elseif string.sub(held[position], 1, HEAD_LENGTH) ~= head
    or (HAS_PAYLOAD[read_head(held[position]).state] and redis.call('HEXISTS', payloads, id) == 0) then
    different[#different + 1] = position
  end
end
return {'OK', unknown, different}
