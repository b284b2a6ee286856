#!lua flags=allow-oom
-- purpose: decide that the queue, which was emptied, has been deleted: a record says so, and is replicated like one of a
-- removed item.  It carries the moment, by this server's clock, and is dropped in time like any tombstone.
-- A queue of which nothing is stored stays unknown.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring notes lead
-- ARGV: epoch generation queue
-- reply: OK [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record bundle entries lead index notes reply itself
if redis.call('EXISTS', records, lead) == 0 then return {'OK', {}} end
local r = open(DELETED) or begin_itself(DELETED)
touch(r)
r.pushed_at, r.due = math.max(now_ms, r.pushed_at), now_us
list_queue()
commit()
return {'OK', decisions()}
