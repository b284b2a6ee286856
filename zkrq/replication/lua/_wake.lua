-- purpose: tell waiting consumers that something is ready.  A waiter is one client's channel; each is told once, and
-- only as many as there are items.  Nobody listens to a channel whose client has died: then the next one is told.
local WAKE_MAX = 64 -- waiters looked at in one call

local function wake(items)
  for _ = 1, math.min(items, WAKE_MAX) do
    local told = 0
    while told == 0 do
      local waiter = redis.call('ZPOPMIN', waiting)
      if not waiter[1] then return end
      told = redis.call('PUBLISH', waiter[1], ready)
    end
  end
end

-- Tell the holder of a claim that its item was cancelled: its client's channel ends with its owner id (wakeups.py).
local function tell_cancelled(id, token)
  local owner = string.match(token, '^(.*)/%d+$')
  redis.call('PUBLISH', string.gsub(server, 'server$', 'wake:') .. owner, claimed .. ' ' .. token .. ' ' .. id)
end
