#!lua flags=allow-oom
-- purpose: drop the figures of a queue, because it is deleted.
-- KEYS: server figures
-- ARGV: epoch generation
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  redis.call('UNLINK', figures)
  return {'OK'}
end
