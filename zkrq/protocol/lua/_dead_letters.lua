-- purpose: drop dead letters beyond the queue's limit, the oldest first.  Every call that buries does so, and so does
-- every claim, which also drops letters that are too old.
-- The limit is what the settings of the queue say (_limits.lua), without them what the client does: dead_max, dead_age_ms.

-- Return how many were dropped, and whether there may be more to drop.
local function drop_dead_letters(dead_max, dead_age_ms)
  if number('dead') == 0 then return 0, false end
  local LETTERS_MAX = 700 -- dropped in one call: more than one call can bury, so the queue never exceeds its limit
  local most, age_ms = limits.letters()
  if most then dead_max, dead_age_ms = most, age_ms end
  local excess, entries = tonumber(dead_max) > 0 and redis.call('ZCARD', dead) - dead_max or 0, {}
  if excess > 0 then
    entries = redis.call('ZRANGE', dead, 0, math.min(excess, LETTERS_MAX) - 1)
  elseif tonumber(dead_age_ms) > 0 then
    entries = redis.call('ZRANGEBYSCORE', dead, '-inf', now_us - dead_age_ms * 1000, 'LIMIT', 0, LETTERS_MAX)
  end
  if #entries == 0 then return 0, false end
  local dropped = 0
  each_in(dead, entries, 'D', 'D', function(r, position)
    remove(r, position, position, 0)
    dropped = dropped + 1
  end)
  commit()
  return dropped, #entries == LETTERS_MAX
end
