-- purpose: read the claims of one owner, page by page.
local PAGE = 500 -- claims read in one call

-- Return the cursor to continue from (0: that was all), the ids on this page that the owner holds, their records, and
-- the entries of claims that it no longer holds.
local function claims_page(owner, cursor)
  local from = cursor == '0' and '[' .. owner .. '/' or '(' .. cursor
  local entries = redis.call('ZRANGEBYLEX', holdings, from, '(' .. owner .. '0', 'LIMIT', 0, PAGE) -- 0 follows /
  if #entries == 0 then return '0', {}, {}, {} end
  local ids, tokens, held, packed_of, stale = {}, {}, {}, {}, {}
  for i, entry in ipairs(entries) do tokens[i], ids[i] = string.match(entry, '^(.-)%z(.*)$') end
  for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
    local r = packed and read_head(packed)
    if not r or r.state ~= 'C' or r.token ~= tokens[i] then
      stale[#stale + 1] = entries[i]
    elseif owner_of(r.token) == owner then
      held[#held + 1], packed_of[#packed_of + 1] = ids[i], packed
    end
  end
  return #entries < PAGE and '0' or entries[#entries], held, packed_of, stale
end
