#!lua flags=allow-oom
-- purpose: decide that an owner is dead: refuse it from now on and requeue its claims, one page per call.  It may have
-- been woken for items that it never took, so its channels are removed, and at the end another waiter is woken.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- The owner stays listed (owners.lua) until retire.lua, so that a fence left in the middle is found and repeated.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes fenced_owners lead waiting
-- ARGV: epoch generation owner cursor
-- reply: OK cursor requeued [id record notes since; of each bundle of which claims are requeued]; requeued: number of items
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(owner, cursor)
  fence_owner(owner)
  redis.call('ZREM', waiting, channel_of(owner))
  local next_cursor, held, stale = claims_page(owner, cursor)
  for _, r in ipairs(held) do
    touch(r)
    each_run(r, 1, r.size, function(from, to, state, row)
      if state == CLAIMED and row_at(r, row) == owner then requeue(r, from, to, 0) end
    end)
  end
  if #stale > 0 then redis.call('ZREM', holdings, unpack(stale)) end
  commit()
  wake(next_cursor == '0' and math.max(1, readied) or readied)
  return {'OK', next_cursor, readied, decisions()}
end
