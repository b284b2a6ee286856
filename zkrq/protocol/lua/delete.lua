#!lua flags=allow-oom
-- purpose: decide that the queue, which was emptied, has been deleted: a record says so, and is replicated like one of a
-- removed item.  It is dropped in time like any tombstone.  The limits of the queue go with it.
-- A queue of which nothing is stored stays unknown.
-- moment_ms: of the deletion, by the clock of the client that asks for it.  The moments of pushes are by the clocks of
-- clients, too, so what this client pushes after its call is later, whatever this server's clock says.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation queue moment_ms
-- reply: OK [id record notes since; of the record, and of the limits]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, moment_ms)
  if redis.call('EXISTS', records, lead) == 0 then return {'OK', {}} end
  local known = open(DELETED)
  local r = known or begin_itself(DELETED)
  touch(r)
  r.pushed_at, r.due = known and math.max(tonumber(moment_ms), r.pushed_at) or tonumber(moment_ms), now_us
  local limited = open(LIMITS)
  if limited and limited.states == 'P' then
    touch(limited)
    limited.states, limited.tail = 'X', ''
  end
  list_queue(queue)
  commit()
  return {'OK', decisions()}
end
