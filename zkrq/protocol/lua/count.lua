#!lua flags=allow-oom
-- purpose: count the items of a queue by state.
-- KEYS: server scheduled lead
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record bundle entries lead index totals
local ready_now, later, held, died = totals()
return {'OK', ready_now, later, held, died}
