#!lua flags=allow-oom
-- purpose: forget an owner whose claims were all requeued, on every server.
-- KEYS: server owners
-- ARGV: epoch generation owner
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(owner)
  redis.call('HDEL', owners, owner)
  return {'OK'}
end
