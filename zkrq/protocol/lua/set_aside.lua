#!lua flags=allow-oom
-- purpose: keep the bytes of damaged bundles, of which no server has a good copy, under a key of their own, so that they stop
-- nothing and nothing is lost.  One that is not damaged here stays: it is the good copy that nobody knew of.
-- kept: what another server keeps of it (_damage.lua), for one that is unknown here; empty: nothing.
-- at_ms: of the client's clock.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead aside
-- ARGV: epoch generation at_ms reason / id kept
-- reply: OK [id payload; of each that is kept now: its bytes] full; full: number of those for which there is no room
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(at_ms, reason)
  local ASIDE_MAX = 1000 -- entries of a queue
  local kept, full, removed = {}, 0, false
  local function keep(id, bytes)
    if redis.call('HLEN', aside) >= ASIDE_MAX and redis.call('HEXISTS', aside, id) == 0 then
      full = full + 1
      return false
    end
    redis.call('HSET', aside, id, bytes)
    kept[#kept + 1], kept[#kept + 2] = id, bytes
    return true
  end

  for i = first, last, 2 do
    local id, bytes = ARGV[i], ARGV[i + 1]
    if damage.has(id) then
      if keep(id, damage.pack(id, at_ms, reason)) then
        damage.remove(id)
        removed = true
      end
    elseif bytes ~= '' and not open(id) and redis.call('HEXISTS', aside, id) == 0 then
      keep(id, bytes)
    end
  end
  if removed then damage.recount() end
  return {'OK', kept, full}
end
