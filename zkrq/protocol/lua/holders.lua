#!lua flags=allow-oom
-- purpose: count the claims of each owner, one page of claims per call.
-- cursor: 0 to begin, then the result of the last call, until that is 0.
-- KEYS: server records claimed owners fenced_owners
-- ARGV: epoch generation cursor
-- reply: OK cursor [owner count; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record owners
local PAGE = 500 -- claims read in one call
local page, tally, position_of = redis.call('ZSCAN', claimed, cursor, 'COUNT', PAGE), {}, {}
for i = 1, #page[2], 2 do
  local packed = redis.call('HGET', records, page[2][i])
  local r = packed and read_head(packed)
  local owner = r and r.state == 'C' and owner_of(r.token)
  if owner and not position_of[owner] then
    position_of[owner] = #tally + 2
    tally[#tally + 1], tally[#tally + 2] = owner, 0
  end
  if owner then tally[position_of[owner]] = tally[position_of[owner]] + 1 end
end
return {'OK', page[1], tally}
