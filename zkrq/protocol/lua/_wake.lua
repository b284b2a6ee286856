-- purpose: wake waiting consumers when items are ready.  A waiter is one client's channel; each is woken once, and only
-- as many as there are items.  If nothing listens on a channel, its client has died, and the next one is woken.

-- Return the number of listeners; nil if the caller's user may not publish: a lost wake-up costs time, but no call
-- fails.
local function publish(channel, text)
  return tonumber(redis.pcall('PUBLISH', channel, text))
end

-- Under limits, as many as may claim something that is ready, for the slots that this call has freed as well.  One that
-- the rate stops learns when that ends.
local function wake(items)
  local WAKE_MAX = 64 -- waiters woken in one call
  local LOOK_MAX = 500 -- waiters tried in one call, dead ones included
  local looks = LOOK_MAX
  if numbers and limits.is_set() then -- without numbers nothing was changed
    local freed = openings.freed
    items, openings.freed = items + freed, 0
    if items > 0 then
      local slots, there = limits.left(), redis.call('ZCARD', ready)
      -- As long as no slot was free nobody learned when something is due.
      if there == 0 and freed >= slots and redis.call('EXISTS', scheduled) == 1 then there = 1 end
      items = math.min(items, slots, there)
    end
  end
  -- A waiter has to ask when something is due, or the rest of a group ends, and then at that moment again.
  if openings.later then items, openings.later = math.max(items, 1), false end
  for _ = 1, math.min(items, WAKE_MAX) do
    local told = 0
    while told == 0 do
      if looks == 0 then return end
      looks = looks - 1
      local waiter = redis.call('ZPOPMIN', waiting)
      if not waiter[1] then return end
      told = publish(waiter[1], ready)
      if not told then return end
    end
  end
end

-- The channel of a client ends with its owner id (keys.py).
local function channel_of(owner)
  local wake, known = string.gsub(server, 'server$', 'wake:'), redis.call('HMGET', server, 'deployment')
  return wake .. string.sub(known[1] or '', 1, 8) .. ':' .. owner
end

-- Notify the holder of a claim that its item was cancelled.
local function tell_cancelled(id, token)
  publish(channel_of(string.match(token, '^(.*)/%d+$')), claimed .. ' ' .. token .. ' ' .. id)
end
