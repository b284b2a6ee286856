#!lua flags=allow-oom
-- purpose: decide that the queue is paused or resumed: a record like an item's says so, and is replicated like one.
-- state: P paused, X not.  call: id of this call; one that was executed here does nothing (_calls.lua).
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- ARGV: epoch generation queue state call
-- reply: OK [id record left_ms; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply calls
local packed = redis.call('HGET', records, PAUSE)
local r = packed and read_record(packed)
  or {epoch = 0, n = 0, state = 'X', priority = 0, marks = 0, attempts = 0, failures = 0, pushed_at = now_ms, due = 0,
    lease = 0, tail = NO_TAIL}
local wanted = was_executed(call) and r.state or state
if r.state ~= wanted or (packed and r.epoch < epoch) then
  if r.state == 'X' then r.tail = NO_TAIL end
  decide(PAUSE, r, wanted, '', now_us)
elseif packed then
  report(PAUSE, packed, now_us)
end
if decided.n > 0 then redis.call('SADD', queues, queue) end
commit()
if wanted == 'X' then wake(WAKE_MAX) end
return {'OK', decided}
