-- purpose: keep which items have ended last, if the queue declares it: in its record LIMITS, as history:keep=N.
-- recent names them, as dead does, by the moment of their end.  All else is told by their records, so each server has this
-- index of records that it would have anyway; they are copied and merged as ever.  A removed item has the moment in an
-- entry of its own, as one that has a result (_results.lua), whose place of the milliseconds is 0 without a result.
-- Tombstones that are named are kept beyond their time (_tombstones.lua).
local endings = {} -- one name for all, as limits
do
  -- Return how many items are kept, 0 where nothing is declared.
  function endings.size()
    if not numbers then read_numbers() end
    if (numbers.limits or '') == '' then return 0 end
    return tonumber(string.match(limits.section(numbers.limits, 'history'), 'keep=(%d+)') or 0)
  end

  -- Have the items that this call removes say when.
  function endings.note_moments(r)
    local states, moment, fresh = r.before and r.before.states or '', struct.pack('<dI4', now_us, 0), {}
    if states == 'P' then return end -- the end of a pause, or of limits
    for position = 1, #states do
      local was = string.byte(states, position)
      if string.byte(r.states, position) == GONE and was ~= GONE and was ~= REFUSED then
        if r.own == '' then
          fresh[#fresh + 1] = string.char(position) .. moment
        elseif not own_of(r, position) then
          set_own(r, position, now_us, 0)
        end
      end
    end
    if fresh[1] then r.own = table.concat(fresh) end
  end

  -- Tell whether an item is removed or a dead letter.  ttl_ms: of its own entry.  A result that belongs to no item (store.lua)
  -- is neither: a call has left it, and it has a time to be kept.
  local function has_ended(r, position, ttl_ms)
    local state = string.byte(r.states, position)
    if state == DEAD then return true end
    if state ~= GONE or position > r.size then return false end
    if ttl_ms == 0 then return not places.has_left(r, position) end
    local row = string.byte(r.named, position) - NONE
    return row == 0 or select(2, row_at(r, row)) > 0
  end

  -- Return whether an item has ended, when, and by which request: its owner and number, 0 for a call that is not a claim;
  -- both nil if its time or its attempts were over.
  function endings.end_of(r, position)
    local moment, ttl_ms = own_of(r, position)
    if not moment or not has_ended(r, position, ttl_ms) then return false end
    local row = string.byte(r.named, position) - NONE
    if row == 0 then return true, moment end
    return true, moment, row_at(r, row)
  end

  -- Enter items that have ended since a bundle was as it is stored, and take out those that have not ended after all.
  function endings.index(b, r)
    for at = 1, #b.own, OWN_BYTES do
      local position = string.byte(b.own, at)
      if not endings.end_of(r, position) then append(leaving, recent, entry_of(r, position)) end
    end
    for at = 1, #r.own, OWN_BYTES do
      local position, moment, ttl_ms = struct.unpack(OWN, r.own, at)
      local is_new = b.own == '' or string.byte(r.states, position) ~= string.byte(b.states, position)
        or own_of(b, position) ~= moment
      if is_new and has_ended(r, position, ttl_ms) then
        append(entering, recent, text_of(moment + r.shift), entry_of(r, position))
      end
    end
  end

  -- Enter items of a record that is told once more.  A learner may have got it before it knew that there is a history.
  function endings.enter_again(r)
    if endings.size() > 0 then endings.index({own = ''}, r) end
  end

  -- Take what seems to have ended later than now, because the clock was set back, for the last before now.  It would push out
  -- all that ends until the clock is there again.  index: recent or dead.
  function endings.put_behind(index)
    local AHEAD_MAX = 10000 -- entries moved in one call, the earliest ones
    local ahead = redis.call('ZRANGEBYSCORE', index, text_of(now_us + 1), '+inf', 'LIMIT', 0, AHEAD_MAX)
    for i, entry in ipairs(ahead) do redis.call('ZADD', index, text_of(now_us - #ahead + i - 1), entry) end
  end

  -- Forget the oldest beyond the number that is kept.
  function endings.trim()
    local size = endings.size()
    if size == 0 then return redis.call('UNLINK', recent) end
    endings.put_behind(recent)
    redis.call('ZREMRANGEBYRANK', recent, 0, -1 - size)
  end

  -- Tell whether a tombstone is one of an item that is kept.
  function endings.has(r)
    if r.own == '' or endings.size() == 0 then return false end
    local entries = {}
    for at = 1, #r.own, OWN_BYTES do entries[#entries + 1] = entry_of(r, string.byte(r.own, at)) end
    for _, moment in ipairs(redis.call('ZMSCORE', recent, unpack(entries))) do
      if moment then return true end
    end
    return false
  end
end
