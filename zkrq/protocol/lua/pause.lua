#!lua flags=allow-oom
-- purpose: decide that the queue is paused or resumed: a record like an item's says so, and is replicated like one.
-- state: P paused, X not.  call: id of this call; one that was executed here does nothing (_calls.lua).
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue state call
-- reply: OK [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, state, call)
  local r = open(PAUSE)
  local known = r ~= nil
  if not r then r = begin_itself(PAUSE) end
  local wanted = was_executed(call) and r.states or state
  if r.states ~= wanted then
    touch(r)
    r.states = wanted
  elseif known then
    tell_as_is(r)
  end
  if r.decided then list_queue(queue) end
  commit()
  if wanted == 'X' then
    openings.later = true -- who waited learned of no moment: one has to ask, also if nothing is ready yet
    wake(math.huge)
  end
  return {'OK', decisions()}
end
