-- purpose: read the claims of one owner, page by page.

-- Return the cursor to continue from (0: that was all), the bundles on this page of which the owner holds items, and the
-- entries of claims that it no longer holds.
local function claims_page(owner, cursor)
  local PAGE = 500 -- entries read in one call
  local from = cursor == '0' and '[' .. owner .. '/' or '(' .. cursor
  local entries = redis.call('ZRANGEBYLEX', holdings, from, '(' .. owner .. '0', 'LIMIT', 0, PAGE) -- 0 follows /
  if #entries == 0 then return '0', {}, {} end
  local bundles, tokens, held, stale = {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    tokens[i], bundles[i] = string.match(entry, '^(.-)%z(.*)$')
    if not tokens[i] then tokens[i], bundles[i] = '', '' end -- it is damaged, and names nothing
  end
  for i, packed in ipairs(redis.call('HMGET', records, unpack(bundles))) do
    local r = open(bundles[i], packed)
    if not r or not holds(r, tokens[i]) then
      stale[#stale + 1] = entries[i]
    elseif string.match(tokens[i], '^(.*)/%d+$') == owner then
      held[#held + 1] = r
    end
  end
  return #entries < PAGE and '0' or entries[#entries], held, stale
end
