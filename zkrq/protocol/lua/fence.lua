#!lua flags=allow-oom
-- purpose: decide that an owner is dead: refuse it from now on and requeue its claims, one page per call.  It may have
-- been woken for items that it never took, so its channel is removed, and at the end another waiter is woken.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- The owner stays listed (owners.lua) until retire.lua, so that a fence left in the middle is found and repeated.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring owners fenced_owners waiting
-- ARGV: epoch generation owner cursor
-- reply: OK cursor [id record left_ms; of each claim requeued]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake owners reply claims
fence_owner(owner)
redis.call('ZREM', waiting, channel_of(owner))
local next_cursor, ids, packed_of, stale = claims_page(owner, cursor)
for i, id in ipairs(ids) do
  local r = read_record(packed_of[i])
  decide(id, r, 'Q', '', math.min(r.due, now_us))
end
if #stale > 0 then redis.call('ZREM', holdings, unpack(stale)) end
local readied = decided.n / 3
commit()
wake(next_cursor == '0' and math.max(1, readied) or readied)
return {'OK', next_cursor, decided}
