#!lua flags=allow-oom
-- purpose: decide that dead letters are queued again, ready at once, as if they had never been tried: those named, or
-- the count that died first.
-- KEYS: server records payloads ready scheduled claimed dead tombstones waiting
-- ARGV: epoch generation count / id
-- reply: OK [id record left_ms of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply
local ids = {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
if #ids == 0 and tonumber(count) > 0 then ids = redis.call('ZRANGE', dead, 0, count - 1) end
for _, id in ipairs(ids) do
  local packed = not position_of[id] and redis.call('HGET', records, id)
  local r = packed and read_record(packed)
  if r and r.state == 'D' then
    r.attempts, r.failures = 0, 0
    decide(id, r, 'Q', '', now_us)
  elseif not position_of[id] then
    redis.call('ZREM', dead, id)
  end
end
local readied = decided.n / 3
commit()
wake(readied)
return {'OK', decided}
