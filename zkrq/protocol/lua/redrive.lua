#!lua flags=allow-oom
-- purpose: queue dead letters again, ready immediately, with no attempts: the named ones, or the count that died first.
-- A letter whose key is in use again stays dead, and so does one that stands for an inner flow, which has failed for good.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- skip: how many of those that died first to skip.  call: id of this call (_calls.lua).  The items name it, so that a
-- repetition reports them again.
-- ARGV: epoch generation skip count call / id
-- reply: OK executed_before [id; of each item that is queued again] [id record notes since; of each bundle concerned]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(skip, count, call)
  local named, redriven = first <= last, {}
  local executed_before = not named and was_executed(call)
  local ids = executed_before and items_of(call) or {}
  for i = first, last do ids[#ids + 1] = ARGV[i] end
  if not named and not executed_before and tonumber(count) > 0 then
    each_in(dead, redis.call('ZRANGE', dead, skip, skip + count - 1), 'D', 'D', function(r, position)
      ids[#ids + 1] = id_of(r.bundle, r, position)
    end)
  end

  -- Return whether the item is queued again, by this call or by its first try.
  local function redrive(id)
    local bundle, position = stored_at(id)
    local r = open(bundle)
    if not r or position > r.size then return false end
    local state, row = string.byte(r.states, position), string.byte(r.named, position) - NONE
    if state == DEAD then
      -- Items that a repetition finds dead stay dead: their key was in use, or they have died again since.
      if executed_before or r.fields ~= '' and flows.nested(r) or has_key(r) and is_taken(tails.read(r.tail)) then return false end
      touch(r)
      r.attempts = string.sub(r.attempts, 1, 2 * position - 2) .. '\0\0' .. string.sub(r.attempts, 2 * position + 1)
      set_own(r, position, now_us, 0)
      set(r, position, position, REQUEUED, rowset.of_call(r, call))
      if has_tail(r) then
        local key, _, ttl_us = tails.read(r.tail)
        r.tail = tails.packed(key, ttl_us > 0 and now_us + ttl_us or 0, ttl_us)
        take_key(r)
      end
      return true
    end
    if state ~= REQUEUED or call == '' or row == 0 or token_at(r, row) ~= call then return false end
    tell_as_is(r)
    return true
  end

  for _, id in ipairs(ids) do
    if redrive(id) then redriven[#redriven + 1] = id end
  end
  commit()
  if not named and not executed_before then remember_items(call, ids) end
  wake(readied)
  return {'OK', executed_before and 1 or 0, redriven, decisions()}
end
