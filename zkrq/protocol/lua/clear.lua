#!lua flags=allow-oom
-- purpose: decide the removal of items that are ready or scheduled and were pushed up to a moment; claimed ones stay
-- with their holders.  Looks at count items from the cursor on: first at scheduled ones, which may become ready
-- meanwhile.
-- Items pushed later are skipped, so that the calls of one clearing end, whatever is pushed.
-- trim: 1 to drop old tombstones as well.  call: id of this call (_calls.lua).
-- before_ms: the moment; on the first page, whose cursor is empty, this server's clock if that is later.
-- cursor: s or r for scheduled or ready, score and id of the last item skipped there; s: from the beginning.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring lead
-- ARGV: epoch generation put_window_ms trim count call before_ms cursor
-- reply: OK executed_before before_ms cursor [id record left_ms; of each removed]; the cursor is empty at the end
-- A repetition reports the items that the first try removed.
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index tombstones reply calls
local executed_before = was_executed(call)
local removed = {} -- their ids
local moment_ms, room = tonumber(before_ms), tonumber(count)
if cursor == '' then moment_ms, cursor = math.max(moment_ms, now_ms), 's' end

-- Remove items of an index that follow the last skipped one; return the score and id of the new last skipped one.
local function clear(index, score, passed)
  local offset = 0
  if redis.call('ZSCORE', index, passed) == score then
    offset = redis.call('ZRANK', index, passed) + 1
  elseif score ~= '' then
    offset = redis.call('ZCOUNT', index, '-inf', '(' .. score)
  end
  local entries = redis.call('ZRANGE', index, offset, offset + room - 1, 'WITHSCORES')
  local ids = {}
  for i = 1, #entries, 2 do ids[#ids + 1] = entries[i] end
  local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local r = held[i] and read_head(held[i])
    if not r or r.state ~= 'Q' then
      redis.call('ZREM', index, id)
    elseif r.pushed_at > moment_ms then
      score, passed = entries[2 * i], id
    elseif not position_of[id] then
      decide(id, r, 'X', call, now_us)
      removed[#removed + 1] = id
    end
  end
  room = room - #ids
  return score, passed
end

if not executed_before then
  local at, score, passed = string.match(cursor, '^(%a)(%S*) ?(.*)$')
  if at == 's' then
    score, passed = clear(scheduled, score, passed)
    if room > 0 then at, score, passed = 'r', '', '' end
  end
  if at == 'r' and room > 0 then score, passed = clear(ready, score, passed) end
  cursor = room > 0 and '' or at .. score .. ' ' .. passed
end
for _, id in ipairs(executed_before and items_of(call) or {}) do
  local packed = redis.call('HGET', records, id)
  local r = packed and read_record(packed)
  if r and r.state == 'X' and r.token == call then tell_as_is(id, packed, r) end
end
commit()
remember_items(call, removed)
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
return {'OK', executed_before and 1 or 0, moment_ms, cursor, decided}
