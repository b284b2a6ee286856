#!lua flags=allow-oom
-- purpose: drop old tombstones, and the payloads that dead clients left with them, of a queue from which nothing is
-- being removed; otherwise every removal does this.  One page per call.
-- KEYS: server records payloads members groups recent tombstones notes lead
-- ARGV: epoch generation put_window_ms
-- remembered_ms: how far back removals are remembered, if the bytes did not suffice for all; -1: they did.
-- reply: OK dropped remembered_ms
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms)
  local dropped = trim_tombstones(tonumber(put_window_ms), math.huge)
  local forgot_ms = number('forgot_ms')
  return {'OK', dropped, forgot_ms > 0 and now_ms - forgot_ms or -1}
end
