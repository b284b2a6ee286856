#!lua flags=allow-oom
-- purpose: read the first items of an index (ready, scheduled, claimed or dead), in its order, without changing
-- anything; scheduled ones in the order in which they become due.
-- clock: 0, times count from now.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring
-- ARGV: epoch generation clock state count
-- reply: OK [id record left_ms payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index copies
local SEEN_MAX = 500 -- items in one call
count = math.min(tonumber(count), SEEN_MAX)

local function first_due()
  local found, ids = {}, {}
  each_priority(scheduled, function(priority, score)
    local last_score = rank(priority, LAST_MOMENT)
    local page = redis.call('ZRANGEBYSCORE', scheduled, score, last_score, 'WITHSCORES', 'LIMIT', 0, count)
    for i = 1, #page, 2 do found[#found + 1] = {due_of(priority, tonumber(page[i + 1])), page[i]} end
  end)
  table.sort(found, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  for i = 1, math.min(count, #found) do ids[i] = found[i][2] end
  return ids
end

local function first_of(index)
  return redis.call('ZRANGE', index, 0, count - 1)
end

local ids = {}
if count > 0 then
  ids = state == 'scheduled' and first_due() or first_of(({ready = ready, claimed = claimed, dead = dead})[state])
end
local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
local found, left_out = copies_of(ids, function(i) return held[i] end)
return {'OK', found, left_out}
