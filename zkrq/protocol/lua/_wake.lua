-- purpose: tell waiting consumers that something is ready.  A waiter is one client's channel; each is told once, and
-- only as many as there are items.  Nobody listens to a channel whose client has died: then the next one is told.
local WAKE_MAX = 64 -- waiters told in one call
local LOOK_MAX = 500 -- waiters looked at in one call, those that died among them

-- How many listened; false where the caller's user may not publish: a lost wake-up costs time, never a call.
local function publish(channel, text)
  local told = redis.pcall('PUBLISH', channel, text)
  return type(told) == 'number' and told
end

local function wake(items)
  local looks = LOOK_MAX
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

-- The channel of a client ends with its owner id (wakeups.py).
local function channel_of(owner)
  return string.gsub(server, 'server$', 'wake:') .. owner
end

-- Tell the holder of a claim that its item was cancelled.
local function tell_cancelled(id, token)
  publish(channel_of(string.match(token, '^(.*)/%d+$')), claimed .. ' ' .. token .. ' ' .. id)
end
