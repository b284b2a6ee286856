#!lua flags=allow-oom
-- purpose: list the queues that ever had an item or a consumer here, one page per call.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server queues
-- ARGV: epoch generation cursor
-- reply: OK cursor [queue]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor)
  local PAGE = 500 -- queues named in one call
  local page = redis.call('SSCAN', queues, cursor, 'COUNT', PAGE)
  return {'OK', page[1], page[2]}
end
