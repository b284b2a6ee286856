#!lua flags=allow-oom
-- purpose: read one page of all bundles that this server knows of a queue, tombstones included, to copy it elsewhere.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of bundles.
-- KEYS: server records payloads notes
-- ARGV: epoch generation clock cursor count
-- reply: OK cursor [id record notes since payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes] [id; of each that is damaged here]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(clock, cursor, count)
  local page, bundles = redis.call('HSCAN', records, cursor, 'COUNT', count), {}
  for i = 1, #page[2], 2 do bundles[#bundles + 1] = open(page[2][i], page[2][i + 1]) end
  local found, left_out, unreadable = copies_of(bundles, clock == '0' and now_us or tonumber(clock))
  return {'OK', page[1], found, left_out, unreadable}
end
