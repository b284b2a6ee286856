#!lua flags=allow-oom
-- purpose: read items as this server knows them; an id that it does not know is left out.
-- KEYS: server records payloads ready scheduled claimed dead tombstones
-- ARGV: epoch generation / id
-- reply: OK [id record left_ms payload of each; the payload is false where there is none]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record index
local ids, found = {}, {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', records, unpack(ids))
local carried = redis.call('HMGET', payloads, unpack(ids))
for i, id in ipairs(ids) do
  if held[i] then
    found[#found + 1] = id
    found[#found + 1] = held[i]
    found[#found + 1] = math.floor((stands_at_us(id, read_head(held[i])) - now_us) / 1000)
    found[#found + 1] = carried[i]
  end
end
return {'OK', found}
