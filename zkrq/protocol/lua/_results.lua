-- purpose: keep the results of removed items, and notify callers that wait until an item has ended.
-- A result is the note of an item that is gone: an own entry of the item has the moment of its removal and, in the place of
-- the failures, the milliseconds for which the result is kept.  So a result travels with its record as the reason of a
-- failure does.
local results = {}
do
  local RESULT_MAX = 32768 -- bytes of a result; zkrq/base/limits.py refuses more

  -- Return for how many milliseconds a result is kept that the client wants kept for ms: for that, unless the settings say it.
  local function kept_ms(ms)
    local MS_MAX = 2 ^ 32 - 1 -- what its entry has room for
    if not numbers then read_numbers() end
    if (numbers.limits or '') == '' then return ms end
    local own = tonumber(string.match(limits.section(numbers.limits, 'results'), 'ttl=(%d+)'))
    return own and math.min(own, MS_MAX) or ms
  end

  -- Keep the result of items that were just removed.
  function results.keep(r, from, to, ttl_ms, text)
    if #text > RESULT_MAX then text = string.sub(text, 1, RESULT_MAX) end
    ttl_ms = kept_ms(ttl_ms)
    for position = from, to do
      set_own(r, position, now_us, ttl_ms)
      note(r, position, text)
    end
  end

  -- Add a result, or the reason of a failure, to the record of its item, which may have arrived without it (apply.lua).
  -- token: the request that removed the item, or had it when it failed.  Two servers that decided separately may each have a
  -- result of their own.
  function results.complete(r, position, token, text)
    if not own_of(r, position) then return end
    local row = string.byte(r.named, position) - NONE
    if (row > 0 and token_at(r, row) or '') == token then redis.call('HSETNX', notes, entry_of(r, position), text) end
  end

  -- Forget the results of a run that another request has left, by a decision that the greater one replaces; was_gone: false:
  -- the reasons of failures, or results of what is not gone after all.  The record may have arrived without the result, and the reason would be told as that.
  function results.forget_others(b, r, from, to, was_gone)
    for position = from, math.min(to, r.size, b.size) do
      local old_row, row = string.byte(b.named, position) - NONE, string.byte(r.named, position) - NONE
      local old_token, token = old_row > 0 and token_at(b, old_row) or '', row > 0 and token_at(r, row) or ''
      local is_same = was_gone and old_token == token
      local is_fresh = is_same or not own_of(b, position)
      for _, noted in ipairs(r.notes or {}) do is_fresh = is_fresh or noted[1] == position end
      if not is_fresh then append(new, 'old_notes', entry_of(r, position)) end
    end
  end

  -- Send the result of an item with its record.  Return it, nil if it is not here.
  function results.recall(r, position)
    local text = own_of(r, position) and redis.call('HGET', notes, entry_of(r, position))
    if text then note(r, position, text) end
    return text or nil
  end

  local RESULT_BYTES = 60 -- of one in Redis beside its text; measured

  -- Return the bytes of the results of a tombstone.
  function results.bytes(r)
    if r.has_no_text then return RESULT_BYTES + #r.bundle end -- the window of a key (push_decided.lua)
    if r.size == 1 and r.notes then return RESULT_BYTES + #r.bundle + #r.notes[1][2] end
    local fresh, count, size_of, bytes = r.notes or {}, #r.own / OWN_BYTES, {}, 0
    if #fresh == count then -- usually: all that it has came with this call
      for _, noted in ipairs(fresh) do bytes = bytes + #noted[2] end
      return bytes + count * (RESULT_BYTES + #r.bundle)
    end
    for _, noted in ipairs(fresh) do size_of[noted[1]] = #noted[2] end
    for at = 1, #r.own, OWN_BYTES do
      local position, _, ttl_ms = struct.unpack(OWN, r.own, at)
      local entry = entry_of(r, position)
      if ttl_ms > 0 then bytes = bytes + RESULT_BYTES + #r.bundle + (size_of[position] or redis.call('HSTRLEN', notes, entry)) end
    end
    return bytes
  end

  -- Return the bytes of the results that a call has brought of a bundle of which other items live.
  function results.bytes_beside(r)
    local bytes = 0
    for _, noted in ipairs(r.notes) do
      if string.byte(r.states, noted[1]) == GONE then bytes = bytes + RESULT_BYTES + #r.bundle + #noted[2] end
    end
    return bytes
  end

  -- Return the entries of the results of a tombstone.
  function results.entries(r)
    local entries = {}
    for at = 1, #r.own, OWN_BYTES do entries[#entries + 1] = entry_of(r, string.byte(r.own, at)) end
    return entries
  end

  -- Return the entries of the results whose time is over, and whether there are others.
  function results.over(r)
    local over, others = {}, false
    for at = 1, #r.own, OWN_BYTES do
      local position, removed_at, ttl_ms = struct.unpack(OWN, r.own, at)
      if ttl_ms == 0 or string.byte(r.states, position) ~= GONE then
        -- no result
      elseif removed_at + r.shift + ttl_ms * 1000 <= now_us then
        over[#over + 1] = entry_of(r, position)
      else
        others = true
      end
    end
    return over, others
  end

  -- -- waiting ---------------------------------------------------------------------------------------------------------

  -- Notify callers that wait until an item has ended.  A field of the lead names their channels, for each such
  -- item; the number awaited counts these fields, so where no caller waits nothing is asked.  A caller asks again every few
  -- seconds, so a message or a field that is lost costs time only.

  local AWAITED_MAX = 10000 -- items that callers wait for, of one queue; callers for others learn of the end when they ask again
  local AWAITED_MEMORY_MS = 60000 -- fields are dropped together, after this time, if there are as many as may be
  local CHANNELS_MAX = 1300 -- bytes of the names of the channels of one item

  local function field_of(entry)
    return 'awaited ' .. entry
  end

  -- Note a channel for an item that has not ended.
  function results.await(entry, channel)
    local count, field = number('awaited'), field_of(entry)
    local channels = redis.call('HGET', lead, field)
    if channels then
      if not string.find(' ' .. channels .. ' ', ' ' .. channel .. ' ', 1, true) and #channels < CHANNELS_MAX then
        redis.call('HSET', lead, field, channels .. ' ' .. channel)
      end
      return
    end
    if count == 0 then set_number('awaited_ms', now_ms) end
    if count >= AWAITED_MAX then
      if number('awaited_ms') > now_ms - AWAITED_MEMORY_MS then return end
      local cursor = '0'
      repeat
        local page = redis.call('HSCAN', lead, cursor, 'COUNT', AWAITED_MAX)
        for i = 1, #page[2], 2 do
          if string.sub(page[2][i], 1, 8) == 'awaited ' then redis.call('HDEL', lead, page[2][i]) end
        end
        cursor = page[1]
      until cursor == '0'
      set_number('awaited_ms', now_ms)
      set_number('awaited', 0)
    end
    redis.call('HSET', lead, field, channel)
    add_number('awaited', 1)
  end

  -- Note that items of a run have ended; commit notifies the callers that wait for them.
  function results.note_ended(r, from, to)
    for position = from, to do
      append(new, 'ended', field_of(entry_of(r, position)), id_of(r.bundle, r, position))
    end
  end

  -- Tell the callers that wait for these: field and id of each.
  function results.tell_ended(ended)
    local ASK_MAX = 1000 -- fields read by one command
    for from = 1, ended and ended.n or 0, 2 * ASK_MAX do
      local fields = {}
      for i = from, math.min(from + 2 * ASK_MAX - 2, ended.n - 1), 2 do fields[#fields + 1] = ended[i] end
      for i, channels in ipairs(redis.call('HMGET', lead, unpack(fields))) do
        if channels then
          for channel in string.gmatch(channels, '%S+') do publish(channel, lead .. ' ' .. ended[from + 2 * i - 1]) end
          add_number('awaited', -redis.call('HDEL', lead, fields[i])) -- 0: a call may end one twice
        end
      end
    end
  end
end
