#!lua flags=allow-oom
-- purpose: read what is set aside here (set_aside.lua): one page of all, of each only the head and the reason (_damage.lua),
-- or the bytes of the first of the named ones.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server aside
-- ARGV: epoch generation cursor / id
-- reply: OK cursor [id payload; of each: its bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor)
  if first <= last then
    local kept = redis.call('HGET', aside, ARGV[first])
    return {'OK', '0', kept and {ARGV[first], kept} or {}}
  end
  local PAGE = 100 -- entries read in one call
  local page = redis.call('HSCAN', aside, cursor, 'COUNT', PAGE)
  for i = 2, #page[2], 2 do page[2][i] = places.kept_head(page[2][i]) end
  return {'OK', page[1], page[2]}
end
