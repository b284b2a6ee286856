#!lua flags=allow-oom
-- purpose: decide the removal of items by id, whatever their state: of one that is claimed the holder learns at its next
-- call.  A dead letter is removed as well.
-- KEYS: server records payloads ready scheduled claimed dead tombstones lead
-- ARGV: epoch generation put_window_ms trim / id
-- reply: OK [state of each before, empty for an unknown one] [id record left_ms of each removed]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index tombstones reply
local states = {}
for i = first, #ARGV do
  local packed = not position_of[ARGV[i]] and redis.call('HGET', records, ARGV[i])
  local r = packed and read_head(packed)
  states[#states + 1] = r and r.state or ''
  if r and r.state ~= 'X' then decide(ARGV[i], r, 'X', '', now_us) end
end
commit()
if trim == '1' and decided.n > 0 then trim_tombstones(tonumber(put_window_ms), decided.n) end
return {'OK', states, decided}
