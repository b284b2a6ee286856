-- purpose: count the items of a queue by state.
local function totals()
  local known = redis.call('HMGET', lead, 'queued', 'claimed', 'dead')
  local later = redis.call('ZCARD', scheduled)
  each_priority(scheduled, function(priority, score)
    later = later - redis.call('ZCOUNT', scheduled, score, rank(priority, now_us))
  end)
  return math.max(0, tonumber(known[1] or 0) - later), later, tonumber(known[2] or 0), tonumber(known[3] or 0)
end
