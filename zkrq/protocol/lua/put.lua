#!lua
-- purpose: apply plain pushes of new ids with version (0, 1); a known id is left unchanged.
-- So is an id that is gone, which the reply names: push.lua decides whether its tombstone still counts.
-- delay_ms: until due; after a space, until it expires.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- ARGV: epoch generation queue put_window_ms / id record delay_ms payload
-- reply: OK [position; of every put that was refused because it is older than the put window or newer than this clock] [position n; of every put whose id is gone, and the n of its tombstone]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake sizes
local ids, late, gone_before = {}, {}, {}
for i = first, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local known = redis.call('HMGET', records, unpack(ids))
local floor_ms = math.max(now_ms - put_window_ms, tonumber(redis.call('HGET', lead, 'floor_ms') or 0))
local latest_ms = now_ms + put_window_ms
local readied, seen = 0, {}

local n, at = 0, first
local oldest_us = now_us - #ids -- one microsecond apart, so that a batch keeps its order
for position, id in ipairs(ids) do
  local record, left_ms, payload = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  note_size(payload)
  local pushed_at = struct.unpack('<d', record, PUSHED_AT)
  if known[position] then
    if string.byte(known[position], STATE_AT) == GONE then
      local at_gone = #gone_before
      gone_before[at_gone + 1], gone_before[at_gone + 2] = position, (struct.unpack('<I4', known[position], N_AT))
    else
      readied = readied + complete(id, read_head(known[position]), payload)
    end
  elseif pushed_at < floor_ms or pushed_at > latest_ms then
    late[#late + 1] = position
  elseif not seen[id] then
    seen[id] = true
    local priority, due_us = string.byte(record, PRIORITY_AT), oldest_us + position
    if priority >= MARK or left_ms ~= '0' then
      local left_us, expires_us = read_left(left_ms)
      if left_us > 0 then due_us = now_us + left_us end
      if priority >= MARK then
        look_after(id, math.floor(priority / MARK), 'Q', record, expires_us and now_us + expires_us)
        priority = priority % MARK
      end
    end
    new_records[n + 1], new_records[n + 2] = id, record
    new_payloads[n + 1], new_payloads[n + 2] = id, payload
    n = n + 2
    enter_queue(id, priority, due_us)
  end
  at = at + 4
end
readied = readied + n / 2
if readied > 0 then
  new_records.n, new_payloads.n = n, n
  redis.call('SADD', queues, queue)
  commit()
  wake(readied)
end
return {'OK', late, gone_before}
