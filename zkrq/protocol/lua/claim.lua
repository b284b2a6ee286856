#!lua flags=allow-oom
-- purpose: decide claims: requeue expired ones, promote due items, then hand up to count ready items to the owner.
-- count: 0 passes on a wake-up that the process cannot use.
-- seq: number of this claim request, growing by owner and queue; repeated, it is given the same items again.
-- waiter: channel to wake when something becomes ready, if fewer than count items were; empty: none.
-- max_attempts: an item that was delivered this many times, and never settled, is a dead letter; 0: no limit.
-- expired: the state of an item that has outlived its time to live: X, or D for a dead letter.
-- dead_max, dead_age_ms: how many dead letters are kept and for how long, 0: no limit.
-- These three hold where the settings of the queue do not say it (_limits.lua).
-- While the queue is paused nothing is handed out.  If payloads are large, their bytes bound the reply (BYTES_MAX); those of
-- results that the claims of ordered groups bring along count, too.
-- next_ms: time until an item becomes ready by itself; 0: ask again immediately; -1: none will.
-- clock: what this server's clock should say now, in microseconds, by the client's clock since its last claim request
-- here; 0: unknown.  The reply carries what it says.  known_ms: how long the client has known this clock.
-- elsewhere: 1 if the client takes another shard for the home of the queue, or does not know.  Where limits or an order need
-- a home, nothing is handed out then either.
-- limited: 1 if the queue has limits, so that nothing is to be claimed ahead; otherwise 0.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead waiting
-- ARGV: epoch generation clock known_ms put_window_ms trim queue owner seq count lease_ms waiter max_attempts expired dead_max dead_age_ms elsewhere
-- reply: OK next_ms dropped_letters [id position count payload; of each run handed out: its first position, its length, and its payloads, as one string] clock limited [id record notes since; of everything decided here]
-- reply: FENCED
-- reply: OUTDATED
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(clock, known_ms, put_window_ms, trim, queue, owner, seq, count, lease_ms, waiter, max_attempts,
    expired, dead_max, dead_age_ms, elsewhere)
  local request = claim_request(owner, seq, count, lease_ms, put_window_ms, max_attempts, expired, elsewhere)
  if is_fenced(owner) then return {'FENCED'} end
  if request.seq < request.last_seq then return {'OUTDATED'} end
  claim_items(request, queue, tonumber(clock), known_ms)
  commit()
  local dropped_letters, more_letters = 0, false
  if request.seq > request.last_seq then dropped_letters, more_letters = drop_dead_letters(dead_max, dead_age_ms) end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  local next_ms = wait_or_wake(request, waiter)
  return {'OK', more_letters and 0 or next_ms, dropped_letters, request.handed, now_us, limits.is_set() and 1 or 0, decisions()}
end
