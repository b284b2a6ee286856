#!lua flags=allow-oom
-- purpose: read the items that have a key, which they do while they are queued or claimed; without changing anything.
-- That is one item, as far as one server decided; several after two servers decided separately.
-- KEYS: server records payloads keys notes
-- ARGV: epoch generation key
-- reply: OK [id record notes since payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(key)
  local ids = {}
  for id in string.gmatch(redis.call('HGET', keys, key) or '', '[^\1]+') do ids[#ids + 1] = id end
  local found, left_out = copies_of(known_of(ids), now_us)
  return {'OK', found, left_out}
end
