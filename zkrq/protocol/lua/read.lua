#!lua flags=allow-oom
-- purpose: read items as this server knows them; unknown ids are left out.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring
-- ARGV: epoch generation clock / id
-- reply: OK [id record left_ms payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index copies
local ids = {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', records, unpack(ids))
local found, left_out = copies_of(ids, function(i) return held[i] end)
return {'OK', found, left_out}
