-- purpose: notify callers that wait until an item has ended.  A field of the lead names their channels, for each such
-- item; the number awaited counts these fields, so where no caller waits nothing is asked.  A caller asks again every few
-- seconds, so a message or a field that is lost costs time only.
local awaited = {}
do
  local AWAITED_MAX = 10000 -- items that callers wait for, of one queue; callers for others learn of the end when they ask again
  local AWAITED_MEMORY_MS = 60000 -- fields are dropped together, after this time, if there are as many as may be
  local CHANNELS_MAX = 1000 -- bytes of the names of the channels of one item

  local function field_of(entry)
    return 'awaited ' .. entry
  end

  -- Note a channel for an item that has not ended.
  function awaited.add(entry, channel)
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
      for _, name in ipairs(redis.call('HKEYS', lead)) do
        if string.sub(name, 1, 8) == 'awaited ' then redis.call('HDEL', lead, name) end
      end
      set_number('awaited_ms', now_ms)
      set_number('awaited', 0)
    end
    redis.call('HSET', lead, field, channel)
    add_number('awaited', 1)
  end

  -- Note that items of a run have ended; commit tells whoever waits for them.
  function awaited.note_ended(r, from, to)
    for position = from, to do
      append(new, 'ended', field_of(entry_of(r, position)), id_of(r.bundle, r, position))
    end
  end

  -- Tell the callers that wait for these: field and id of each.
  function awaited.tell(ended)
    local ASK_MAX = 1000 -- fields read by one command
    for from = 1, ended and ended.n or 0, 2 * ASK_MAX do
      local fields = {}
      for i = from, math.min(from + 2 * ASK_MAX - 2, ended.n - 1), 2 do fields[#fields + 1] = ended[i] end
      for i, channels in ipairs(redis.call('HMGET', lead, unpack(fields))) do
        if channels then
          for channel in string.gmatch(channels, '%S+') do publish(channel, lead .. ' ' .. ended[from + 2 * i - 1]) end
          redis.call('HDEL', lead, fields[i])
          add_number('awaited', -1)
        end
      end
    end
  end
end
