#!lua flags=allow-oom
-- purpose: read which items this server knows, and in which version, to compare it with another server: one page of all
-- items, or the named ones.
-- Expired tombstones are left out, because each server drops them at its own time.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of items.
-- KEYS: server records
-- ARGV: epoch generation put_window_ms cursor count / id
-- reply: OK cursor [id head; of each: format, version and state as the record begins with them]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record
local next_cursor, heads = '0', {}
if ARGV[first] then
  for i = first, #ARGV do
    local packed = redis.call('HGET', records, ARGV[i])
    if packed then
      heads[#heads + 1] = ARGV[i]
      heads[#heads + 1] = packed
    end
  end
else
  local page = redis.call('HSCAN', records, cursor, 'COUNT', count)
  next_cursor, heads = page[1], page[2]
end
local known = {}
for i = 1, #heads, 2 do
  local id, packed = heads[i], heads[i + 1]
  if id == PAUSE or not is_expired(packed, now_us, put_window_ms) then
    local at = #known
    known[at + 1], known[at + 2] = id, string.sub(packed, 1, HEAD_LENGTH)
  end
end
return {'OK', next_cursor, known}
