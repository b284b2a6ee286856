#!lua
-- purpose: apply pushes of new ids with version (0, 1); an id that is known, also as a tombstone, stays as it is.
-- KEYS: server queues records payloads ready scheduled claimed dead tombstones lead waiting
-- ARGV: epoch generation queue put_window_ms / id record delay_ms payload
-- reply: OK [position of every put that was refused because it is older than the put window or newer than this clock]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake
local ids, late = {}, {}
for i = first, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local known = redis.call('HMGET', records, unpack(ids))
local floor_ms = math.max(now_ms - put_window_ms, tonumber(redis.call('HGET', lead, 'floor_ms') or 0))
local readied, seen = 0, {}
for position, id in ipairs(ids) do
  local at = first + (position - 1) * 4
  local record, delay_ms, payload = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local _, _, _, priority, _, _, pushed_at = struct.unpack('<xI4I4c1BI4I4d', record)
  if known[position] then
    -- A claim may have come before its own push; its payload is still to be kept, and the item may have waited for it.
    local held = read_head(known[position])
    if held.state ~= 'X' and redis.call('HSETNX', payloads, id, payload) == 1 and held.state == 'Q' then
      redis.call('ZADD', ready, rank(held.priority, now_us), id)
      redis.call('ZREM', scheduled, id)
      readied = readied + 1
    end
  elseif pushed_at < floor_ms or pushed_at > now_ms + put_window_ms then
    late[#late + 1] = position
  elseif not seen[id] then
    seen[id] = true
    append_pair(new_records, id, record)
    append_pair(new_payloads, id, payload)
    -- One microsecond apart, so that a batch keeps its order.
    local due_us = delay_ms > 0 and now_us + delay_ms * 1000 or now_us - #ids + position
    enter_queue(id, priority, due_us)
    readied = readied + 1
  end
end
if readied > 0 then
  redis.call('SADD', queues, queue)
  commit()
  wake(readied)
end
return {'OK', late}
