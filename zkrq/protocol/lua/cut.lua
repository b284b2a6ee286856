#!lua flags=allow-oom
-- purpose: drop the payloads of removed items, once every server of the view knows that they are gone.  Dropped by the
-- removal itself they could be lost: a primary that does not know of the removal may decide the item again, and then
-- die.
-- KEYS: server records payloads
-- ARGV: epoch generation / id
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record
local ids, gone = {}, {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
  if not packed or string.byte(packed, STATE_AT) == GONE then gone[#gone + 1] = ids[i] end
end
if #gone > 0 then redis.call('HDEL', payloads, unpack(gone)) end
return {'OK'}
