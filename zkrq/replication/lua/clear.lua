#!lua flags=allow-oom
-- purpose: decide the removal of up to count items that are ready or scheduled; claimed ones stay with their holders.
-- KEYS: server records payloads ready scheduled claimed dead tombstones
-- ARGV: epoch generation count
-- reply: OK [id record left_ms of each removed]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate record index reply
for _, index in ipairs({ready, scheduled}) do
  local ids = redis.call('ZRANGE', index, 0, count - 1 - decided.n / 3)
  if #ids > 0 and decided.n / 3 < tonumber(count) then
    local held = redis.call('HMGET', records, unpack(ids))
    for i, id in ipairs(ids) do
      local r = held[i] and read_head(held[i])
      if r and r.state == 'Q' then
        if not position_of[id] then decide(id, r, 'X', '', now_us) end
      else
        redis.call('ZREM', index, id)
      end
    end
  end
end
commit()
return {'OK', decided}
