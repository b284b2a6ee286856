-- purpose: tell whether a key is in use: its item is queued and not expired, or claimed.

-- Return the id of the item that has this key, nil if it is free.
local function is_taken(key)
  for id in string.gmatch(redis.call('HGET', keys, key) or '', '[^\1]+') do
    if position_of[id] then return id end
    local packed = redis.call('HGET', records, id)
    local r = packed and read_head(packed)
    if r and (r.state == 'C' or r.state == 'Q' and not has_expired(id, r)) then return id end
  end
end
