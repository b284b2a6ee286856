#!lua flags=allow-oom
-- purpose: one turn of a consumer: settle what it has done, then claim what it does next, in one decision.  Settlements
-- come first, so an item that is nacked or released here may be handed out here.
-- Each part is idempotent by itself: a repeated turn finds its settlements done and its request known.  Each has its own
-- verdict: a fenced owner's settlements are lost and its request is FENCED, but the settlements of another owner beside it
-- count.
-- The arguments are those of settle.lua and claim.lua.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead waiting
-- ARGV: epoch generation clock known_ms put_window_ms trim queue owner seq count lease_ms waiter max_attempts expired dead_max dead_age_ms elsewhere cuts / id items version token how
-- reply: OK next_ms dropped_letters [id position count payload; as of claim.lua] clock limited [id record notes since; of everything decided here] verdict [lost; as of settle.lua] [flow; as of settle.lua]?; verdict: OK, or why nothing is claimed: FENCED, OUTDATED
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(clock, known_ms, put_window_ms, trim, queue, owner, seq, count, lease_ms, waiter, max_attempts,
    expired, dead_max, dead_age_ms, elsewhere, cuts)
  local lost, buries = settle_rows(first, last, owner .. '/' .. seq)
  commit()
  local released = readied
  local request = claim_request(owner, seq, count, lease_ms, put_window_ms, max_attempts, expired, elsewhere)
  local verdict = is_fenced(owner) and 'FENCED' or request.seq < request.last_seq and 'OUTDATED' or 'OK'
  local is_claim, is_new = verdict == 'OK', verdict == 'OK' and request.seq > request.last_seq
  if is_claim then claim_items(request, queue, tonumber(clock), known_ms) else leading_since_us(tonumber(clock)) end
  commit()
  local dropped_letters, more_letters = 0, false
  if buries or is_new then dropped_letters, more_letters = drop_dead_letters(dead_max, dead_age_ms) end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  cut_listed(cuts)
  local next_ms = is_claim and wait_or_wake(request, waiter) or -1
  -- Items that became ready here and were not handed out are for other consumers, and so are slots.
  wake(released > 0 and math.min(released, redis.call('ZCARD', ready)) or 0)
  return {'OK', more_letters and 0 or next_ms, dropped_letters, request.handed, now_us, limits.is_set() and 1 or 0, decisions(), verdict, lost, flows.due()}
end
