#!lua flags=allow-oom
-- purpose: read which bundles this server knows, and in which version, to compare it with another server: one page of
-- all, or the named ones.
-- Expired tombstones are left out, because each server drops them at its own time.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of bundles.
-- KEYS: server records
-- ARGV: epoch generation put_window_ms cursor count / id
-- reply: OK cursor [id head; of each: format and version as the record begins with them]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, cursor, count)
  local next_cursor, found = '0', {}
  if first <= last then
    for i = first, last do
      local at = #found
      found[at + 1], found[at + 2] = ARGV[i], redis.call('HGET', records, ARGV[i])
    end
  else
    local page = redis.call('HSCAN', records, cursor, 'COUNT', count)
    next_cursor, found = page[1], page[2]
  end
  local heads = {}
  for i = 1, #found, 2 do
    local id, packed = found[i], found[i + 1]
    if packed and (id == PAUSE or id == LIMITS or not is_expired(read_record(packed), put_window_ms)) then
      local at = #heads
      heads[at + 1], heads[at + 2] = id, string.sub(packed, SHIFT_BYTES + 1, SHIFT_BYTES + HEAD_LENGTH)
    end
  end
  return {'OK', next_cursor, heads}
end
