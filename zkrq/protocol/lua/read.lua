#!lua flags=allow-oom
-- purpose: read bundles as this server knows them; unknown ones are left out.
-- KEYS: server records payloads notes
-- ARGV: epoch generation clock / id
-- reply: OK [id record notes since payload; of each, the payload is false where there is none] [id; of each beyond the limit of bytes] [id; of each that is damaged here]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(clock)
  local ids = {}
  for i = first, last do ids[#ids + 1] = ARGV[i] end
  local found, left_out, unreadable = copies_of(known_of(ids), clock == '0' and now_us or tonumber(clock))
  return {'OK', found, left_out, unreadable}
end
