#!lua flags=allow-oom
-- purpose: have items that wait be ready immediately: those that are scheduled, and those that wait for their next attempt.
-- What they have counted stays, and so does their place in a group that keeps the order.  What is held for the end of a flow
-- (_flows.lua) waits on, and so does what another shard has not let go yet (adopt.lua), and what has outlived its time.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- call: id of this call (_calls.lua).  The items name it, so that a repetition reports them again.
-- ARGV: epoch generation call / id
-- reply: OK [id; of each item that is ready now] [id record notes since; of each bundle concerned]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(call)
  local advanced = {}

  -- Return whether the item is ready by this call, or by its first try.
  local function advance(id)
    local bundle, position = stored_at(id)
    local r = open(bundle)
    if not r or position > r.size then return false end
    local state, row = string.byte(r.states, position), string.byte(r.named, position) - NONE
    if state ~= QUEUED and state ~= REQUEUED then return false end
    local moment, failures = own_of(r, position)
    if (moment or r.due) + r.shift <= now_us then
      if call == '' or row == 0 or token_at(r, row) ~= call then return false end
      tell_as_is(r)
      return true
    end
    if flows.is_held(r) or places.due_of_adopted(r, position) or has_expired(r) then return false end
    touch(r)
    set_own(r, position, now_us, failures)
    set(r, position, position, REQUEUED, rowset.of_call(r, call))
    return true
  end

  for i = first, last do
    if advance(ARGV[i]) then advanced[#advanced + 1] = ARGV[i] end
  end
  commit()
  wake(math.max(readied, #advanced))
  return {'OK', advanced, decisions()}
end
