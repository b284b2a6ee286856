#!lua flags=allow-oom
-- purpose: decide items again as they are here, under this epoch, whatever other servers know of them.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring
-- ARGV: epoch generation / id
-- reply: OK [id record left_ms; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index reply
for i = first, #ARGV do
  local packed = redis.call('HGET', records, ARGV[i])
  local r = packed and not position_of[ARGV[i]] and read_record(packed)
  if r then decide(ARGV[i], r, r.state, r.token, stands_at_us(ARGV[i], r)) end
end
commit()
return {'OK', decided}
