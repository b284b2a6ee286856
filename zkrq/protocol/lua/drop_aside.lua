#!lua flags=allow-oom
-- purpose: drop what is set aside here (set_aside.lua): the named entries, or all of the queue if none is named.
-- KEYS: server aside
-- ARGV: epoch generation / id
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  local ids = {}
  for i = first, last do ids[#ids + 1] = ARGV[i] end
  if #ids > 0 then redis.call('HDEL', aside, unpack(ids)) else redis.call('UNLINK', aside) end
  return {'OK'}
end
