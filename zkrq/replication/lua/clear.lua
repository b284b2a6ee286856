#!lua flags=allow-oom
-- purpose: decide the removal of up to count items that are ready or scheduled; claimed ones stay with their holders.
-- trim: 1 to drop old tombstones as well.  call: what names this call (_calls.lua).
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring lead
-- ARGV: epoch generation put_window_ms trim count call
-- reply: OK executed_before [id record left_ms of each removed]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index tombstones reply calls
local executed_before = was_executed(call)
for _, index in ipairs(executed_before and {} or {ready, scheduled}) do
  local room = count - decided.n / 3
  local ids = room > 0 and redis.call('ZRANGE', index, 0, room - 1) or {}
  local held = #ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local r = held[i] and read_head(held[i])
    if not r or r.state ~= 'Q' then
      redis.call('ZREM', index, id)
    elseif not position_of[id] then
      decide(id, r, 'X', '', now_us)
    end
  end
end
commit()
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
return {'OK', executed_before and 1 or 0, decided}
