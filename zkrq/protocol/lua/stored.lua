#!lua flags=allow-oom
-- purpose: read the results that are kept under these ids (store.lua).  If the last one of an id is not there yet, the
-- caller's channel is noted, and notified of the next one.  All servers get the record before the caller learns of it.
-- waiter: that channel; empty: none.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation waiter / id
-- reply: OK [state text; of each: A the last result, P one before the last, Q none] [id record notes since; of each that is there]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function told(id, waiter)
  local r = open(id)
  local removed_at, ttl_ms
  if r and r.count == 0 and not string.find(r.states, ALIVE) then removed_at, ttl_ms = own_of(r, 1) end
  local text = removed_at and removed_at + r.shift + ttl_ms * 1000 > now_us and results.recall(r, 1)
  if text then tell_as_is(r) end
  if text and attempts_at(r, 1) % 4 > 0 then return 'A', text end
  -- An unknown id has no record that could name its entry.
  if waiter ~= '' then results.await(id .. '\0\1', waiter) end
  return text and 'P' or 'Q', text or ''
end

local function operation(waiter)
  local states = {}
  for i = first, last do
    local state, text = told(ARGV[i], waiter)
    states[#states + 1], states[#states + 2] = state, text
  end
  commit()
  return {'OK', states, decisions()}
end
