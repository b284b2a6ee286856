#!lua flags=allow-oom
-- purpose: count the items of a queue by state.
-- KEYS: server scheduled expiring lead
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead expired
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation()
  local ready_now, later, held, died, over = totals()
  return {'OK', ready_now, later, held, died, over}
end
