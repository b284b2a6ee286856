#!lua flags=allow-oom
-- purpose: read one page of all items that this server knows of a queue, tombstones included, to copy it elsewhere.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of items.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring
-- ARGV: epoch generation clock cursor count
-- reply: OK cursor [id record left_ms payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index copies
local page = redis.call('HSCAN', records, cursor, 'COUNT', count)
local ids = {}
for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
local found, left_out = copies_of(ids, function(i) return page[2][2 * i] end)
return {'OK', page[1], found, left_out}
