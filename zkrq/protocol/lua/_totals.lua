-- purpose: count the items of a queue by state.  A queued item that has outlived its time to live is not ready: it
-- expired, although it stays until a claim request drops it.  No scheduled one has (stands_at in _index.lua).

-- Return the numbers of ready, scheduled, claimed and expired items, and of dead letters.
local function totals()
  local later = redis.call('ZCARD', scheduled)
  each_priority(scheduled, function(priority, score)
    later = later - redis.call('ZCOUNT', scheduled, score, rank(priority, now_us))
  end)
  local over = redis.call('ZCOUNT', expiring, 0, now_us) -- of claimed items the scores are below 0
  return math.max(0, number('queued') - later - over), later, number('claimed'), number('dead'), over
end
