#!lua flags=allow-oom
-- purpose: what is to be said of a queue at a glance: how many items it has by state and whether it is paused, how long
-- the ready one that waits longest has been due (-1: none), how many have a key or a time to live, how many tombstones.
-- KEYS: server records payloads ready scheduled claimed dead tombstones keys expiring
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead paused waited_ms keyed expiring tombstones
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index
local due = redis.call('ZCOUNT', scheduled, '-inf', now_us)
local packed = redis.call('HGET', records, PAUSE)
local paused = packed and read_head(packed).state == 'P' and 1 or 0
local waited_us = -1
for priority = 0, PRIORITIES - 1 do
  local from = rank(priority, FIRST_MOMENT)
  local oldest = redis.call('ZRANGEBYSCORE', ready, from, '(' .. from + PRIORITY_STEP, 'WITHSCORES', 'LIMIT', 0, 1)
  if oldest[2] then waited_us = math.max(waited_us, now_us - due_of(priority, tonumber(oldest[2]))) end
end
return {'OK', redis.call('ZCARD', ready) + due, redis.call('ZCARD', scheduled) - due, redis.call('ZCARD', claimed),
  redis.call('ZCARD', dead), paused, waited_us < 0 and -1 or math.floor(waited_us / 1000), redis.call('HLEN', keys),
  redis.call('ZCARD', expiring), redis.call('LLEN', tombstones)}
