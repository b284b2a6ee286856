-- purpose: claim items, for a consumer's request alone or for one that follows settlements (turn.lua).  claim.lua says
-- what the arguments mean.
local CLAIM_MAX = 500 -- items handed out in one call
local RUNS_MAX = 300 -- runs of them: each costs as much as an item that is in no bundle
local REMOVED_MAX = 200 -- items that are not handed out, but dropped or buried, in one call; the rest waits for the next one
local PAGE_LEAST = 8 -- entries of the index read at first; then twice as many each time

-- since_us: since when this server leads.  Return FENCED or OUTDATED; or OK, next_ms, the number of dead letters dropped,
-- the runs handed out, and how many entries are left in the index of ready items.
local function claim_items(since_us)
  local token = owner .. '/' .. seq
  seq, count, lease_ms = tonumber(seq), math.min(tonumber(count), CLAIM_MAX), tonumber(lease_ms)
  local most = tonumber(max_attempts)
  local last_seq = tonumber(redis.call('HGET', owners, owner) or 0)
  if is_fenced(owner) then return 'FENCED' end
  if seq < last_seq then return 'OUTDATED' end
  local has_large = number('large') > 0
  local handed, handed_count, handed_bytes, cut, removed_count = {}, 0, 0, false, 0

  local function hand(r, from, to)
    local part = payloads_between(r.whole, from, to)
    if has_large and handed_count > 0 and handed_bytes + #part > BYTES_MAX then
      cut = true
      return false
    end
    handed_bytes, handed_count = handed_bytes + #part, handed_count + to - from + 1
    local n = #handed
    handed[n + 1], handed[n + 2], handed[n + 3], handed[n + 4] = r.bundle, from, to - from + 1, part
    return true
  end

  local function has_payloads(r)
    if r.whole == nil then
      if has_large and handed_count > 0 and r.size == 1
        and handed_bytes + redis.call('HSTRLEN', payloads, r.bundle) > BYTES_MAX then
        cut = true
        return nil
      end
      r.whole = redis.call('HGET', payloads, r.bundle)
    end
    return not lacks_payloads(r, r.whole)
  end

  local function hand_out_ready()
    -- Claim the items of a run.  True: that was all that fits.
    local function claim_run(r, from, to)
      if not hand(r, from, to) then return true end
      touch(r)
      if not r.row then
        r.row = add_row(r, owner, seq, lease_ms, now_us + lease_ms * 1000)
        local was_claimed = r.soonest > 0
        r.soonest = was_claimed and math.min(r.soonest, now_us + lease_ms * 1000) or now_us + lease_ms * 1000
      end
      set(r, from, to, CLAIMED, r.row)
      count_attempts(r, from, to, 1)
      return handed_count == count
    end

    -- Claim queued items of a run, except those that were delivered too often.
    local function claim_within(r, from, to)
      to = math.min(to, from + count - handed_count - 1)
      local begin_at = from
      for position = from, most > 0 and to or from - 1 do
        if attempts_at(r, position) >= most then
          if position > begin_at and claim_run(r, begin_at, position - 1) then return true end
          removed_count = removed_count + 1
          bury(r, position, position, 'delivered ' .. attempts_at(r, position)
            .. ' times, and settled by none of those consumers', 0)
          begin_at = position + 1
        end
      end
      return begin_at <= to and claim_run(r, begin_at, to)
    end

    -- A claim arrived before the push itself, whose outcome is not known yet: wait as long as the push may still arrive.
    -- Items of the bundle whose payloads are there do not wait.
    local function wait_for_push(r, own_position, entry)
      local may_arrive, waits = r.pushed_at >= now_ms - 2 * put_window_ms, false
      for position = own_position or 1, own_position or r.size do
        if own_position or string.byte(r.states, position) == QUEUED then
          if r.whole and payload_at(r.whole, position) then
            if claim_within(r, position, position) then return true end
          elseif may_arrive then
            waits = true
          else
            removed_count = removed_count + 1
            remove(r, position, position, 0)
          end
        end
      end
      if waits then
        redis.call('ZADD', scheduled, rank(r.priority, stands_at(r, now_us - r.shift + put_window_ms * 1000)), entry)
        append(leaving, ready, entry)
      end
    end

    local function hand_out(r, position, entry)
      cut = cut or removed_count >= REMOVED_MAX or #handed >= 4 * RUNS_MAX
      if cut or handed_count == count then return true end
      r.is_ready = not position
      local has = has_payloads(r)
      if cut then return true end
      if not has then return wait_for_push(r, position, entry) end
      if r.marks > 0 and has_expired(r) then
        removed_count = removed_count + 1
        return expire(r, 1)
      end
      if position then return claim_within(r, position, position) end
      local from, to = string.find(r.states, 'Q+')
      while from do
        if claim_within(r, from, to) then return true end
        from, to = string.find(r.states, 'Q+', from)
        if handed_count == count then return true end
      end
    end

    local at, page = 0, PAGE_LEAST
    repeat
      page = math.min(page, count - handed_count)
      local entries = redis.call('ZRANGE', ready, at, at + page - 1)
      local is_done, removed = each_in(ready, entries, 'Q', 'R', hand_out)
      if #entries == 0 or is_done then return end
      at, page = at + #entries - removed, 2 * page
    until handed_count == count
  end

  -- Hand out the remaining claims that this request was given before.
  local function hand_out_again()
    -- The items of a run, or of them those whose payloads are there.
    local function hand_all(r, from, to, is_whole)
      if is_whole then return hand(r, from, to) end
      local any = false
      for position = from, to do any = payload_at(r.whole, position) and hand(r, position, position) or any end
      return any
    end

    local begin_at = token .. '\0'
    local entries = redis.call('ZRANGEBYLEX', holdings, '[' .. begin_at, '(' .. token .. '\1', 'LIMIT', 0, CLAIM_MAX)
    for _, entry in ipairs(entries) do
      local r = open(string.sub(entry, #begin_at + 1))
      local is_whole = r and has_payloads(r)
      if r and r.whole and not cut then
        local mine = false
        each_run(r, 1, r.size, function(from, to, state, row)
          if state == CLAIMED and token_at(r, row) == token and hand_all(r, from, to, is_whole) then mine = true end
        end)
        if mine and r.epoch < epoch then
          touch(r)
          each_run(r, 1, r.size, function(_, _, state, row)
            if state == CLAIMED and token_at(r, row) == token then set_row(r, row, lease_ms, now_us + lease_ms * 1000) end
          end)
        elseif mine then
          r.told = true
        end
      end
    end
  end

  local paused = redis.call('HGET', records, PAUSE)
  paused = paused and string.find(read_record(paused).states, 'P', 1, true)

  local dropped_letters, more_letters = 0, false

  local function next_ms(left)
    if more_letters then return 0 end
    if paused then return -1 end
    if left > 0 then return 0 end
    local deadline_us = tonumber(redis.call('ZRANGE', claimed, held_back.n, held_back.n, 'WITHSCORES')[2])
    local soonest_us = (deadline_us or held_back.n > 0) and math.min(deadline_us or math.huge, held_back.until_us)
    each_priority(scheduled, function(priority, score)
      local due_us = due_of(priority, score)
      if not soonest_us or due_us < soonest_us then soonest_us = due_us end
    end)
    return soonest_us and math.max(0, math.ceil((soonest_us - now_us) / 1000)) or -1
  end

  if seq == last_seq then
    hand_out_again()
  else
    -- List even a queue that never has an item; otherwise its owners would be kept forever.
    if last_seq == 0 then redis.call('SADD', queues, queue) end
    redis.call('HSET', owners, owner, seq)
    keep_house(since_us)
    if count > 0 and not paused then hand_out_ready() end
  end
  commit()
  if seq > last_seq then dropped_letters, more_letters = drop_dead_letters() end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  if waiter ~= '' and handed_count < count and not cut then
    forget_before(waiting, now_ms - WAITER_MEMORY_MS)
    redis.call('ZADD', waiting, now_ms, waiter)
  end
  local left = redis.call('ZCARD', ready)
  -- Items that are left are for another process.  A request for no items passes on its own wake-up, too: the item behind
  -- that may not be due yet, and then the next waiter learns when it is.
  if count == 0 or (cut or handed_count == count) and left > 0 then wake(1) end
  return 'OK', next_ms(left), dropped_letters, handed, left
end
