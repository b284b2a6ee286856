#!lua flags=allow-oom
-- purpose: finish pushes that only another server knows: records that are unknown here.
-- If the key was given to another item meanwhile, the item is removed, because its push never completed. Items pushed
-- before floor_ms are skipped: they may be removed items whose tombstones were dropped.
-- clock: what this server's clock said (metadata.lua) before the items were judged, in microseconds; after window_ms
-- the call is too late, because another client may have done the same, and the tombstones may be dropped by now.
-- left_ms: until due time or deadline, negative for the past.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- ARGV: epoch generation queue clock window_ms / id record left_ms payload
-- reply: OK [id record left_ms; of each]
-- reply: LATE
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply taken sizes
if now_us > clock + window_ms * 1000 then return {'LATE'} end
local floor_ms = tonumber(redis.call('HGET', lead, 'floor_ms') or 0)
local readied = 0
for i = first, #ARGV, 4 do
  local id, r = ARGV[i], read_record(ARGV[i + 1])
  if redis.call('HEXISTS', records, id) == 0 and not position_of[id] and r.pushed_at >= floor_ms then
    if r.marks >= KEYED and is_taken(read_tail(r.tail)) then
      decide(id, r, 'X', '', now_us)
    else
      local left_us, expires_us = read_left(ARGV[i + 2])
      if HAS_PAYLOAD[r.state] then
        note_size(ARGV[i + 3])
        append_pair(new_payloads, id, ARGV[i + 3])
      end
      decide(id, r, r.state, r.token, now_us + left_us, expires_us and now_us + expires_us)
      if r.state == 'Q' then readied = readied + 1 end
    end
  end
end
if decided.n > 0 then redis.call('SADD', queues, queue) end
commit()
wake(readied)
return {'OK', decided}
