#!lua flags=allow-oom
-- purpose: finish pushes that only another server knows: records that are unknown here.
-- If the key was given to another item meanwhile, the item is removed, because its push never completed. Items pushed
-- before floor_ms are skipped: they may be removed items whose tombstones were dropped.  So are those that were pushed
-- before the queue was deleted: their pushes never completed, and they are forgotten once floor_ms is later (scrubbing.py).
-- clock: what this server's clock said (metadata.lua) before the items were judged, in microseconds; after window_ms
-- the call is too late, because another client may have done the same, and the tombstones may be dropped by now.
-- since: as in apply.lua.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue clock window_ms / id record notes since payload
-- reply: OK [id record notes since; of each]
-- reply: LATE
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, clock, window_ms)
  if now_us > clock + window_ms * 1000 then return {'LATE'} end
  local deleted = open(DELETED)
  local floor_ms = math.max(number('floor_ms'), deleted and deleted.pushed_at + 1 or 0)
  for i = first, last, 5 do
    local id, payload = ARGV[i], ARGV[i + 4]
    local r = read_record(ARGV[i + 1], 0)
    r.shift = ARGV[i + 3] + now_us
    if not open(id) and r.pushed_at >= floor_ms then
      begin(id, r)
      beside.unpack(r, ARGV[i + 2])
      touch(r)
      if has_key(r) and is_taken((tails.read(r.tail))) then
        remove(r, 1, 1)
      elseif string.find(r.states, '[QRCD]') then
        note_size(payload, r.size)
        append(new, 'payloads', id, payload)
        take_key(r)
      end
    end
  end
  if #order > 0 then list_queue(queue) end
  commit()
  wake(readied)
  return {'OK', decisions()}
end
