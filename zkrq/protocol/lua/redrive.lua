#!lua flags=allow-oom
-- purpose: queue dead letters again, ready immediately, with no attempts: the named ones, or the count that died first.
-- A letter whose key is in use again stays dead.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- skip: how many of those that died first to skip.  call: id of this call (_calls.lua). It is the token of the new
-- records, so that a repetition reports them again.
-- ARGV: epoch generation skip count call / id
-- reply: OK executed_before [id record left_ms; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply taken calls
local ids = {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
local named = ids[1] ~= nil
local executed_before = not named and was_executed(call)
if executed_before then
  ids = items_of(call)
elseif not named and tonumber(count) > 0 then
  ids = redis.call('ZRANGE', dead, skip, skip + count - 1)
end
for _, id in ipairs(ids) do
  local packed = not position_of[id] and redis.call('HGET', records, id)
  local r = packed and read_record(packed)
  if r and r.state == 'D' then
    -- Items that a repetition finds dead stay dead: their key was in use, or they have died again since.
    if not executed_before and (r.marks < KEYED or not is_taken(read_tail(r.tail))) then
      r.attempts, r.failures = 0, 0
      decide(id, r, 'Q', call, now_us)
    end
  elseif r and r.state == 'Q' and call ~= '' and r.token == call then
    tell_as_is(id, packed, r)
  elseif not position_of[id] then
    redis.call('ZREM', dead, id)
  end
end
local readied = decided.n / 3
commit()
if not named and not executed_before then remember_items(call, ids) end
wake(readied)
return {'OK', executed_before and 1 or 0, decided}
