-- purpose: bring a queue up to time: requeue expired claims, promote due items, drop items that have outlived their time
-- to live, put groups in line again that have rested.

-- expired: the state of an item that has outlived its time to live (claim.lua).
local function expire(r, position, expired)
  if expired == 'X' then remove(r, position, position, 0) else bury(r, position, position, 'expired', 0) end
end

-- Requeue expired claims, promote due items, drop expired items.  Return how many bundles have claims that expire later
-- for this client than for others, and when the first of these does.
local function keep_house(since_us, known_ms, expired)
  local HOUSEKEEPING_MAX = 100 -- bundles with expired claims, and due entries, processed in one call
  local held_back, held_back_until_us = 0, math.huge
  local now_text = text_of(now_us)
  if number('resting') > 0 then
    grouping.end_rests()
    commit()
  end
  local over = redis.call('ZRANGEBYSCORE', claimed, '-inf', now_text, 'LIMIT', '0', HOUSEKEEPING_MAX)
  -- Usually there is nothing to do, and what follows is not even made.
  if not over[1] and redis.call('EXISTS', scheduled, expiring) == 0 then return held_back, held_back_until_us end
  -- The clock may have jumped after a claim was made and before this client came to know the clock, so that neither it nor
  -- the server has noticed.  Until the others have looked, such a claim expires as much later as that jump can be long.

  -- Return when a claim of this row expires, at most now if it has; and whether it is held back until then.
  local function expiry_of(r, row)
    local _, _, row_lease_ms, deadline = row_at(r, row)
    local known_us, silence_us = tonumber(known_ms) * 1000, SILENCE_MS * 1000
    deadline = deadline + r.shift
    if deadline > now_us then return deadline end
    local full_lease_us = since_us + row_lease_ms * 1000
    if full_lease_us > now_us then return full_lease_us end
    if known_us >= silence_us or deadline + silence_us <= now_us or deadline - row_lease_ms * 1000 >= now_us - known_us then
      return deadline
    end
    return deadline + silence_us, true
  end

  local function requeue_expired()
    if not over[1] then return end
    local later = {}
    each_in(claimed, over, 'C', nil, function(r)
      local first_us, expired_rows, waits = math.huge, {}, false
      for row = 1, #r.rows / ROW_BYTES do
        if is_live(r, row) then
          local expires_us, is_held_back = expiry_of(r, row)
          if is_held_back then
            waits, held_back_until_us = true, math.min(held_back_until_us, expires_us)
          elseif expires_us <= now_us then
            expired_rows[row] = true
          else
            first_us = math.min(first_us, expires_us)
          end
        end
      end
      if next(expired_rows) then
        touch(r)
        each_run(r, 1, r.size, function(from, to, state, row)
          if state == CLAIMED and expired_rows[row] then requeue(r, from, to, 0) end
        end)
      end
      if waits then
        held_back = held_back + 1
      elseif first_us < math.huge then
        append(later, claimed, first_us, r.bundle)
      end
    end)
    commit()
    write('ZADD', claimed, later[claimed])
  end

  -- Highest priority first; otherwise the most urgent of many due items would come last.
  local function promote_due()
    local room = HOUSEKEEPING_MAX
    each_priority(scheduled, function(priority, first_score)
      local last_score = rank(priority, now_us)
      if room == 0 or first_score > last_score then return end
      local entries, score_of = places.with_scores(
        redis.call('ZRANGEBYSCORE', scheduled, first_score, last_score, 'WITHSCORES', 'LIMIT', 0, room))
      room = room - #entries
      each_in(scheduled, entries, 'Q', 'R', function(r, _, entry)
        if r.group then grouping.join(r, entry) else append(entering, ready, score_of[entry], entry) end
        append(leaving, scheduled, entry)
      end)
    end)
    commit()
  end

  -- Only queued items expire: claimed ones keep their place until they would be delivered again.
  local function drop_expired()
    local ended = redis.call('ZRANGEBYSCORE', expiring, '0', now_text, 'LIMIT', '0', HOUSEKEEPING_MAX)
    each_in(expiring, ended, '[QR]', nil, function(r, _, entry)
      if has_expired(r) then expire(r, 1, expired) else redis.call('ZREM', expiring, entry) end
    end)
    if #ended > 0 then commit() end
  end

  requeue_expired()
  if redis.call('EXISTS', scheduled, expiring) > 0 then
    promote_due()
    drop_expired()
  end
  return held_back, held_back_until_us
end
