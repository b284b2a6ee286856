-- purpose: count the items of a queue by state.
local function totals()
  local later = redis.call('ZCARD', scheduled)
  each_priority(scheduled, function(priority, score)
    later = later - redis.call('ZCOUNT', scheduled, score, rank(priority, now_us))
  end)
  return math.max(0, number('queued') - later), later, number('claimed'), number('dead')
end
