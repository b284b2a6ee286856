-- purpose: keep the results of removed items.  A result is the note of an item that is gone: an own entry of the item has
-- the moment of its removal and, in the place of the failures, the milliseconds for which the result is kept.  So a
-- result travels with its record as the reason of a failure does.
local results = {}
do
  local RESULT_MAX = 32768 -- bytes of a result; zkrq/base/limits.py refuses more

  -- Keep the result of items that were just removed.
  function results.keep(r, from, to, ttl_ms, text)
    if #text > RESULT_MAX then text = string.sub(text, 1, RESULT_MAX) end
    for position = from, to do
      set_own(r, position, now_us, ttl_ms)
      note(r, position, text)
    end
  end

  -- Add a result to the record of its item.  The record may have arrived without it, because a later decision about another
  -- item of the bundle overtook the one that has it.
  -- token: the request that removed the item.  Two servers that decided separately may each have a result of their own.
  function results.complete(r, position, token, text)
    if string.byte(r.states, position) ~= GONE or not own_of(r, position) then return end
    local row = string.byte(r.named, position) - NONE
    if row > 0 and token_at(r, row) == token then redis.call('HSETNX', notes, entry_of(r, position), text) end
  end

  -- Send the result of an item with its record.  Return it, nil if it is not here.
  function results.recall(r, position)
    local text = own_of(r, position) and redis.call('HGET', notes, entry_of(r, position))
    if text then note(r, position, text) end
    return text or nil
  end

  -- Return the bytes of the results of a tombstone.
  function results.bytes(r)
    local RESULT_BYTES = 60 -- of one in Redis beside its text; measured
    if r.size == 1 and r.notes then return RESULT_BYTES + #r.bundle + #r.notes[1][2] end
    local fresh, count, size_of, bytes = r.notes or {}, #r.own / OWN_BYTES, {}, 0
    if #fresh == count then -- usually: all that it has came with this call
      for _, noted in ipairs(fresh) do bytes = bytes + #noted[2] end
      return bytes + count * (RESULT_BYTES + #r.bundle)
    end
    for _, noted in ipairs(fresh) do size_of[noted[1]] = #noted[2] end
    for at = 1, #r.own, OWN_BYTES do
      local position = string.byte(r.own, at)
      local entry = entry_of(r, position)
      bytes = bytes + RESULT_BYTES + #r.bundle + (size_of[position] or redis.call('HSTRLEN', notes, entry))
    end
    return bytes
  end

  -- Return the entries of the results of a tombstone.
  function results.entries(r)
    local entries = {}
    for at = 1, #r.own, OWN_BYTES do entries[#entries + 1] = entry_of(r, string.byte(r.own, at)) end
    return entries
  end
end
