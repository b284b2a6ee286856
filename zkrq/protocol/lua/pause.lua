#!lua flags=allow-oom
-- purpose: decide that the queue is paused or resumed: a record like an item's says so, and is replicated like one.
-- state: P paused, X not.  call: id of this call; one that was executed here does nothing (_calls.lua).
-- until_ms: the moment at which the pause ends by itself, in milliseconds since 1970, as the client names it; left_ms: how
-- long that is from now, which counts by the clocks of the servers.  Both 0: until it is resumed.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue state until_ms left_ms call
-- reply: OK [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, state, until_ms, left_ms, call)
  local r = open(PAUSE)
  local known = r ~= nil
  if not r then r = begin_itself(PAUSE) end
  local field = state == 'P' and limits.end_of_pause(tonumber(until_ms)) or ''
  local is_new = not was_executed(call)
  local _, known_field = limits.pause_ends_at(r)
  if is_new and (r.states ~= state or known_field ~= field) then
    touch(r)
    r.states = state
    limits.set_end_of_pause(r, field, tonumber(left_ms))
  elseif known then
    tell_as_is(r)
  end
  if r.decided then list_queue(queue) end
  commit()
  if r.states == 'X' or field ~= '' then
    openings.later = true -- who waited learned of no moment: one has to ask, also if nothing is ready yet
    wake(math.huge)
  end
  return {'OK', decisions()}
end
