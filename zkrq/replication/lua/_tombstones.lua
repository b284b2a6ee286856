-- purpose: drop tombstones that have done their duty: twice the put window old, or more of them than the limit.
-- An entry names the version that it stands for, so that a later life of the same id is never touched.
-- A put older than the youngest dropped one could revive its item, so puts from before it are refused (floor_ms).
local TOMBSTONES_MAX = 1000000 -- per queue, about 150 bytes each
local TRIM_MAX = 1000 -- looked at in one call

local function trim_tombstones(put_window_ms, room)
  local excess = redis.call('LLEN', tombstones) - TOMBSTONES_MAX
  local first_entry = redis.call('LRANGE', tombstones, 0, 0)[1]
  if not first_entry or (excess <= 0 and struct.unpack('<d', first_entry) > now_ms - 2 * put_window_ms) then return end
  local oldest = redis.call('LRANGE', tombstones, 0, math.min(room, TRIM_MAX) - 1)
  local ids, version_of, floor_ms = {}, {}, nil
  for i, entry in ipairs(oldest) do
    local buried_ms, e, n, at = struct.unpack('<dI4I4', entry)
    if i > excess and buried_ms > now_ms - 2 * put_window_ms then break end
    ids[i], version_of[i], floor_ms = string.sub(entry, at), {epoch = e, n = n}, buried_ms
  end
  if not floor_ms then return end
  redis.call('HSET', lead, 'floor_ms', floor_ms)
  local forgotten = {}
  for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
    local r = packed and read_head(packed)
    if r and r.state == 'X' and not newer(r, version_of[i]) then forgotten[#forgotten + 1] = ids[i] end
  end
  if #forgotten > 0 then
    redis.call('HDEL', payloads, unpack(forgotten)) -- what a client left that died before it said that all know (cut.lua)
    redis.call('HDEL', records, unpack(forgotten))
  end
  redis.call('LTRIM', tombstones, #ids, -1)
end
