#!lua flags=allow-oom
-- purpose: have the index of flows (_flows.lua) say what the records say: what a script that failed half-way, or a command by hand,
-- has left.  An entry that is missing ends a flow early; one of something that is gone holds it up for ever.
-- Either the entries of the named bundles, as far as they are missing, or a page of what is there, without what is not so.
-- What is damaged stays as it is until it is mended.
-- cursor: 0 to begin, then the result of the last call, until that is 0: the entry that was looked at last.
-- repaired: number of entries.
-- KEYS: server records members lead
-- ARGV: epoch generation cursor / id
-- reply: OK cursor repaired
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(cursor)
  local PAGE = 200 -- entries looked at in one call
  local repaired, next_cursor = 0, '0'
  for i = first, last do
    local r = open(ARGV[i])
    local missing = r and flows.missing(r) or {}
    for _, each in ipairs(missing) do redis.call('ZADD', members, '0', each) end
    repaired = repaired + #missing
  end
  if first > last then
    local wrong, behind = flows.wrong(cursor, PAGE)
    if wrong[1] then redis.call('ZREM', members, unpack(wrong)) end
    repaired, next_cursor = #wrong, behind or '0'
  end
  return {'OK', next_cursor, repaired}
end
