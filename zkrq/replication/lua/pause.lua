#!lua flags=allow-oom
-- purpose: decide that the queue is paused, or goes on: a record like an item's says so, and is replicated like one.
-- state: P paused, X not; behind a space what names this call.  A call whose connection broke may be executed after its
-- repetition, when somebody has decided otherwise meanwhile: so one that was executed here does nothing.
-- KEYS: server queues records payloads ready scheduled claimed dead tombstones keys expiring lead waiting
-- ARGV: epoch generation queue state
-- reply: OK [id record left_ms of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply
local CALLS_BYTES = 300 -- what is remembered of the calls executed here
local wanted, call = string.match(state, '^(%a) ?(.*)$')
local packed = redis.call('HGET', records, PAUSE)
local r = packed and read_record(packed)
  or {epoch = 0, n = 0, state = 'X', priority = 0, marks = 0, attempts = 0, failures = 0, pushed_at = now_ms, due = 0,
    lease = 0, tail = NO_TAIL}
local calls = call ~= '' and redis.call('HGET', lead, 'pauses') or ''
if call ~= '' and string.find(calls, call, 1, true) then
  wanted = r.state
elseif call ~= '' then
  redis.call('HSET', lead, 'pauses', string.sub(call .. ' ' .. calls, 1, CALLS_BYTES))
end
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
