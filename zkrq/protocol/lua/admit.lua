#!lua flags=allow-oom
-- purpose: end the wait of adopted items (adopt.lua): the shard from which they come has decided.
-- has_come: 1: the item is here from now on, due as it was there; 0: it has ended there, and was never accepted here.
-- What is not waiting stays as it is: another client has brought the same decision.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation / id has_come
-- reply: OK [id record notes since; of each bundle concerned]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  local came = 0
  for i = first, last, 2 do
    local bundle, position = stored_at(ARGV[i])
    local r = open(bundle)
    local waits = r and position <= r.size and places.due_of_adopted(r, position)
    if r and not waits then
      tell_as_is(r)
    elseif waits and ARGV[i + 1] == '1' then
      touch(r)
      set_own(r, position, places.due_of_adopted(r, position))
      came = came + 1
    elseif waits then
      remove(r, position, position, 0, REFUSED)
    end
  end
  commit()
  wake(came)
  return {'OK', decisions()}
end
