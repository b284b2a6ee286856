#!lua flags=allow-oom
-- purpose: read one page of which items this server knows and in which version, to compare it with another server.
-- cursor: 0 to begin, then what the last call returned, until that is 0.  count: about how many items.
-- KEYS: server records
-- ARGV: epoch generation cursor count
-- reply: OK cursor [id head of each: format, version and state as the record begins with them]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record
local page = redis.call('HSCAN', records, cursor, 'COUNT', count)
for i = 2, #page[2], 2 do page[2][i] = string.sub(page[2][i], 1, HEAD_LENGTH) end
return {'OK', page[1], page[2]}
