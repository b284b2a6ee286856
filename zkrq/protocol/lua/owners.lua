#!lua flags=allow-oom
-- purpose: list the owners that have claimed here and were not retired since, one page per call.  Every client calls
-- this every few seconds, so it also distinguishes a silent queue from a stopped server (_lease.lua).
-- A queue that was forgotten since its name was read stays so.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- clock: as in claim.lua.
-- KEYS: server owners lead
-- ARGV: epoch generation cursor clock
-- reply: OK cursor [owner] clock
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(cursor, clock)
  if redis.call('EXISTS', owners, lead) == 0 then return {'OK', '0', {}, now_us} end
  leading_since_us(tonumber(clock))
  write_numbers()
  local PAGE = 500 -- owners named in one call
  local page, names = redis.call('HSCAN', owners, cursor, 'COUNT', PAGE), {}
  for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
  return {'OK', page[1], names, now_us}
end
