#!lua flags=allow-oom
-- purpose: decide what became of items.  Of an item that has ended, all servers get the record before the caller learns of
-- it, so no other end can follow.  Of one that has not, the caller's channel is noted, and told when the item ends.
-- waiter: that channel; empty: none.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation put_window_ms waiter / id
-- reply: OK [state text; of each item: U unknown, Q queued, C claimed and the owner, D dead letter and the reason, A done and the result, N done without a result, L done and its result lost, M it is on another shard now, X cancelled, E its time to live was over] [id record notes since; of each that has ended]
-- reply: NOTINSYNC generation
-- reply: STALE epoch

-- Return what is told of an item that was removed.
local function told_removed(r, position, is_kept)
  local row = string.byte(r.named, position) - NONE
  if row == 0 then return 'E', '' end
  local _, seq = row_at(r, row)
  if places.has_left(r, position) then return places.MOVED, '' end
  if seq == 0 then return 'X', '' end
  local removed_at, ttl_ms = own_of(r, position)
  local text = results.recall(r, position)
  if not removed_at or ttl_ms == 0 then return 'N', '' end
  if not is_kept and removed_at + r.shift + ttl_ms * 1000 <= now_us then return 'N', '' end
  return text and 'A' or 'L', text or ''
end

local function told(id, put_window_ms, waiter)
  local bundle, position = stored_at(id)
  local r = open(bundle)
  if not r or position > r.size then return 'U', '' end
  local is_kept = r.fields ~= '' and flows.keeps_results(r) -- a member's, beyond its time
  if not is_kept and is_expired(r, put_window_ms) and not flows.keeps_name(r) then return 'U', '' end
  local state = string.byte(r.states, position)
  if state == GONE then
    local name, text = told_removed(r, position, is_kept)
    tell_as_is(r)
    return name, text
  elseif state == DEAD then
    local reason = results.recall(r, position)
    tell_as_is(r)
    return 'D', reason or ''
  elseif state == REFUSED then
    return 'U', ''
  end
  if waiter ~= '' then results.await(entry_of(r, position), waiter) end
  if state ~= CLAIMED then return 'Q', '' end
  return 'C', (row_at(r, string.byte(r.named, position) - NONE))
end

local function operation(put_window_ms, waiter)
  local states = {}
  for i = first, last do
    local state, text = told(ARGV[i], put_window_ms, waiter)
    states[#states + 1], states[#states + 2] = state, text
  end
  commit()
  return {'OK', states, decisions()}
end
