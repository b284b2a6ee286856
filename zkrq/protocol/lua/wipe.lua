#!lua flags=allow-oom
-- purpose: forget a queue, on a server that was enrolled under a temporary generation and is in no view.  A late
-- duplicate is refused, because the server has adopted a later epoch by then.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead waiting reports aside
-- ARGV: epoch generation queue
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue)
  redis.call('UNLINK', records, payloads, ready, scheduled, members, groups, claimed, holdings, dead, recent, tombstones, keys, expiring, notes,
    owners, fenced_owners, lead, waiting, reports, aside)
  redis.call('SREM', queues, queue)
  return {'OK'}
end
