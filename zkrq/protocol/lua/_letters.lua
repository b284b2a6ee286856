-- purpose: drop dead letters beyond the queue's limit, the oldest first.  Every call that buries does so, and so does
-- every claim, which also drops letters that are too old.
local LETTERS_MAX = 700 -- dropped in one call: more than one call can bury, so the queue never exceeds its limit

-- Return how many were dropped, and whether there may be more to drop.
local function drop_dead_letters()
  local excess, ids = tonumber(dead_max) > 0 and redis.call('ZCARD', dead) - dead_max or 0, {}
  if excess > 0 then
    ids = redis.call('ZRANGE', dead, 0, math.min(excess, LETTERS_MAX) - 1)
  elseif tonumber(dead_age_ms) > 0 then
    ids = redis.call('ZRANGEBYSCORE', dead, '-inf', now_us - dead_age_ms * 1000, 'LIMIT', 0, LETTERS_MAX)
  end
  if #ids == 0 then return 0, false end
  local dropped = 0
  for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
    local r = packed and read_head(packed)
    if r and r.state == 'D' then
      decide(ids[i], r, 'X', '', now_us)
      dropped = dropped + 1
    else
      redis.call('ZREM', dead, ids[i])
    end
  end
  commit()
  return dropped, #ids == LETTERS_MAX
end
