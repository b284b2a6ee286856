#!lua flags=allow-oom
-- purpose: one turn of a consumer: settle what it has done, then claim what it does next, in one decision.  Settlements
-- come first, so an item that is nacked or released here may be handed out here.
-- Each part is idempotent by itself: a repeated turn finds its settlements done and its request known.  Each has its own
-- verdict: a fenced owner's settlements are lost and its request is FENCED, but the settlements of another owner beside it
-- count.
-- The arguments are those of settle.lua and claim.lua.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring notes owners fenced_owners lead waiting
-- ARGV: epoch generation clock known_ms put_window_ms trim queue owner seq count lease_ms waiter max_attempts expired dead_max dead_age_ms / id items version token how
-- reply: OK next_ms dropped_letters [id position count payload; as of claim.lua] clock [id record notes since; of everything decided here] verdict [lost; as of settle.lua]; verdict: OK, or why nothing is claimed: FENCED, OUTDATED
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record bundle entries lead index payloads wake owners lease notes tombstones reply dead_letters housekeeping settling claiming
local since_us = leading_since_us(tonumber(clock))
local settled_letters, lost = settle_items(owner .. '/' .. seq)
local released = readied
local verdict, next_ms, dropped_letters, handed, left = claim_items(since_us)
-- Items that became ready here and were not handed out are for other consumers.
wake(math.min(released, left or released))
return {'OK', next_ms or -1, settled_letters + (dropped_letters or 0), handed or {}, now_us, decisions(), verdict, lost}
