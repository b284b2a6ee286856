-- purpose: tell whether a key is in use: its item is queued and not expired, or claimed.

local function take_key(r)
  if has_key(r) then taken_now[(tails.read(r.tail))] = r end
end

-- Return the bundle of the item that has this key, nil if it is free.
local function is_taken(key)
  for id in string.gmatch(redis.call('HGET', keys, key) or '', '[^\1]+') do
    local r = open(id)
    if r and (string.find(r.states, 'C') or string.find(r.states, '[QR]') and not has_expired(r)) then return r end
  end
  return taken_now[key]
end
