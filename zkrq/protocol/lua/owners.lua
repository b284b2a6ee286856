#!lua flags=allow-oom
-- purpose: name the owners that have claimed here and were not retired since, a page of them a call; every client asks
-- this every few seconds, so it also tells a silent queue from a server that was stopped (_lease.lua).
-- cursor: 0 to begin, then what the last call returned, until that is 0.
-- KEYS: server owners lead
-- ARGV: epoch generation cursor
-- reply: OK cursor [owner]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock lease
leading_since_us(0)
local PAGE = 500 -- owners named in one call
local page, names = redis.call('HSCAN', owners, cursor, 'COUNT', PAGE), {}
for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
return {'OK', page[1], names}
