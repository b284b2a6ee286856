#!lua flags=allow-oom
-- purpose: decide that the queue is paused or resumed: a record like an item's says so, and is replicated like one.
-- state: P paused, X not.  call: id of this call; one that was executed here does nothing (_calls.lua).
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue state call
-- reply: OK [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record bundle entries lead index notes wake reply calls
-- A first version counts from the clock, above all of a former life of the queue (forget.lua), one a second.
local r = open(PAUSE)
local known = r ~= nil
if not r then
  r = begin(PAUSE, {epoch = 0, n = math.floor(now_ms / 1000), priority = 0, marks = 0, count = 0, size = 1, pushed_at = now_ms, due = 0,
    clock = now_us, soonest = 0, shift = 0, states = 'X', named = string.char(NONE), attempts = '\0\0', holders = {},
    rows = '', own = '', tail = ''})
end
local wanted = was_executed(call) and r.states or state
if r.states ~= wanted then
  touch(r)
  r.states = wanted
elseif known then
  tell_as_is(r)
end
if r.decided then list_queue() end
commit()
if wanted == 'X' then wake(WAKE_MAX) end
return {'OK', decisions()}
