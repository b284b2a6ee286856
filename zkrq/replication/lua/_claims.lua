-- purpose: the claims of one owner, a page of all claims at a time.
local PAGE = 500 -- claims looked at in one call

-- The cursor to go on with (0: that was all) and the ids of this page that the owner holds.
local function claims_page(owner, cursor)
  local page = redis.call('ZSCAN', claimed, cursor, 'COUNT', PAGE)
  local held = {}
  for i = 1, #page[2], 2 do
    local id = page[2][i] -- one by one: a page may be larger than asked for
    local packed = redis.call('HGET', records, id)
    local r = packed and read_head(packed)
    if r and r.state == 'C' and owner_of(r.token) == owner then held[#held + 1] = id end
  end
  return page[1], held
end
