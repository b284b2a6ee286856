-- purpose: read this server's own clock, as now_us and now_ms.
local function read_clock()
  local parts = redis.call('TIME')
  now_us = parts[1] * 1000000 + parts[2]
  now_ms = math.floor(now_us / 1000)
end
