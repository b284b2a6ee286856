-- purpose: read this server's own clock, as now_us and now_ms.
local clock_parts = redis.call('TIME')
local now_us = clock_parts[1] * 1000000 + clock_parts[2]
local now_ms = math.floor(now_us / 1000)
