#!lua flags=allow-oom
-- purpose: read the first items of an index (ready, scheduled, claimed or dead), in its order, and change nothing.
-- clock: 0, times count from now.
-- KEYS: server records payloads ready scheduled claimed dead tombstones keys expiring
-- ARGV: epoch generation clock state count
-- reply: OK [id record left_ms payload of each; the payload is false where there is none] [ids beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index copies
local index = ({ready = ready, scheduled = scheduled, claimed = claimed, dead = dead})[state]
local ids = tonumber(count) > 0 and redis.call('ZRANGE', index, 0, count - 1) or {}
local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
local found, left_out = copies_of(ids, function(i) return held[i] end)
return {'OK', found, left_out}
