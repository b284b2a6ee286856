#!lua flags=allow-oom
-- purpose: decide that an owner is dead: refuse it from now on and requeue its claims, a page of them a call.
-- cursor: 0 to begin, then what the last call returned, until that is 0.
-- KEYS: server records payloads ready scheduled claimed dead tombstones owners fenced_owners lead waiting
-- ARGV: epoch generation owner cursor
-- reply: OK cursor [id record left_ms of each claim requeued]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record index wake owners reply
local PAGE = 500 -- claims looked at in one call

fence_owner(owner)
local page = redis.call('ZSCAN', claimed, cursor, 'COUNT', PAGE)
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local packed = redis.call('HGET', records, id)
  local r = packed and read_record(packed)
  if r and r.state == 'C' and owner_of(r.token) == owner and not position_of[id] then
    decide(id, r, 'Q', '', math.min(r.due, now_us))
  end
end
local readied = decided.n / 3
commit()
wake(readied)
return {'OK', page[1], decided}
