#!lua flags=allow-oom
-- purpose: copy what another server knows of a queue besides its items (metadata.lua), keeping the greater values.
-- clock: this server's clock, from which apply.lua is to count.
-- KEYS: server queues owners fenced_owners lead
-- limited: the limits, in force until their record comes: which of the items to come are in the history (_endings.lua).
-- ARGV: epoch generation queue floor_ms begun limited / owner seq fenced_ago_ms
-- reply: OK clock
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, floor_ms, begun, limited)
  redis.call('SADD', queues, queue)
  if tonumber(floor_ms) > tonumber(redis.call('HGET', lead, 'floor_ms') or 0) then
    redis.call('HSET', lead, 'floor_ms', floor_ms)
  end
  if limited ~= '' then redis.call('HSETNX', lead, 'limits', limited) end
  limits.merge_begun(begun)
  write_numbers()
  for i = first, last, 3 do
    local owner, seq, fenced_ago_ms = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    if seq > tonumber(redis.call('HGET', owners, owner) or 0) then redis.call('HSET', owners, owner, seq) end
    if fenced_ago_ms >= 0 and not redis.call('ZSCORE', fenced_owners, owner) then
      redis.call('ZADD', fenced_owners, now_ms - fenced_ago_ms, owner)
    end
  end
  return {'OK', now_us}
end
