#!lua flags=allow-oom
-- purpose: sum up a queue: its items by state, whether it is paused, how long its oldest ready item has been due (-1:
-- none), how many items have a key or a time to live, how many tombstones there are.
-- KEYS: server records ready scheduled tombstones keys expiring lead
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead paused waited_ms keyed expiring tombstones
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record bundle entries lead index totals
local packed = redis.call('HGET', records, PAUSE)
local paused = packed and string.find(read_record(packed).states, 'P', 1, true) and 1 or 0
local waited_us = -1
for _, index in ipairs({ready, scheduled}) do
  each_priority(index, function(priority, score) waited_us = math.max(waited_us, now_us - due_of(priority, score)) end)
end
local ready_now, later, held, died = totals()
return {'OK', ready_now, later, held, died, paused, waited_us < 0 and -1 or math.floor(waited_us / 1000),
  redis.call('HLEN', keys), redis.call('ZCARD', expiring), redis.call('LLEN', tombstones)}
