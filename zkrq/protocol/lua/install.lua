#!lua flags=allow-oom
-- purpose: copy what another server knows of a queue besides its items (metadata.lua), keeping the greater values.
-- clock: this server's clock, from which apply.lua is to count.
-- limited: the limits, in force until their record comes: which of the items to come are in the history (_endings.lua).
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead
-- ARGV: epoch generation queue floor_ms begun limited / owner seq fenced_ago_ms
-- reply: OK clock
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, floor_ms, begun, limited)
  redis.call('SADD', queues, queue)
  if tonumber(floor_ms) > number('floor_ms') then set_number('floor_ms', floor_ms) end
  if limited ~= '' and not numbers.limits then set_number('limits', limited) end
  local counts = limits.merge_begun(numbers.begun, string.match(begun, '^[^%z]*'))
  if counts then set_number('begun', limits.write_begun(counts)) end
  for group, packed in string.gmatch(begun, '%z([^%z]*)%z([^%z]*)') do grouping.learn_begun(group, packed) end
  commit()
  for i = first, last, 3 do
    local owner, seq, fenced_ago_ms = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    if seq > (tonumber(redis.call('HGET', owners, owner) or 0) or 0) then redis.call('HSET', owners, owner, seq) end
    if fenced_ago_ms >= 0 and not redis.call('ZSCORE', fenced_owners, owner) then
      redis.call('ZADD', fenced_owners, now_ms - fenced_ago_ms, owner)
    end
  end
  return {'OK', now_us}
end
