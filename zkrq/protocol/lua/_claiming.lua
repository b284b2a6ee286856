-- purpose: claim items for an owner: what claim.lua does, in steps that another operation may take as well.
local claim_request, claim_items
do
  -- Call visit, as each_in does, for the first entries of a group beside the one that stands in ready.  count: at least 1.
  local function each_member(group, count, visit)
    local entries = redis.call('ZRANGEBYLEX', members, '[' .. group .. '\0', '(' .. group .. '\1', 'LIMIT', 0, count)
    each_in(members, entries, 'Q', 'R', function(r, position, member)
      return visit(r, position, places.entry_of_member(member))
    end, places.entry_of_member)
  end

  local CLAIM_MAX = 500 -- items handed out in one call
  local RUNS_MAX = 300 -- runs of items: each costs as much as an item that is in no bundle
  local REMOVED_MAX = 200 -- items that are not handed out, but dropped or buried, and groups that leave the line because their
  -- limit was lowered, in one call; the rest waits for the next one
  local TOKENS_FROM = 4294967296 -- above the version of any item: tokens of claims from before the order was declared
  local PAGE_LEAST = 8 -- entries of the index read at first; then twice as many each time

  -- Read a claim request.  What is handed out is added to it: handed is the list of the reply; is_cut: there was more than
  -- one reply may have.  most: how many of the items that it asks for it may have.
  function claim_request(owner, seq, count, lease_ms, put_window_ms, max_attempts, expired, elsewhere)
    local _, _, state = limits.letters()
    count, expired = math.min(tonumber(count), CLAIM_MAX), state or expired
    return {
      owner = owner, token = owner .. '/' .. seq, seq = tonumber(seq), count = count, most = count,
      lease_ms = tonumber(lease_ms), put_window_ms = put_window_ms, max_attempts = tonumber(max_attempts), expired = expired,
      is_elsewhere = elsewhere == '1', last_seq = (tonumber(redis.call('HGET', owners, owner) or 0) or 0), has_large = number('large') > 0,
      handed = {}, handed_count = 0, handed_bytes = 0, is_cut = false, removed_count = 0,
    }
  end

  local function hand(request, r, from, to)
    local part = payloads_between(r.whole, from, to)
    local bytes = #part + (r.fields ~= '' and beside.saved_bytes(r, from, to) or 0)
    if request.handed_count > 0 and request.handed_bytes + bytes > BYTES_MAX then
      request.is_cut = true
      return false
    end
    request.handed_bytes, request.handed_count = request.handed_bytes + bytes, request.handed_count + to - from + 1
    local handed = request.handed
    local n = #handed
    handed[n + 1], handed[n + 2], handed[n + 3], handed[n + 4] = r.bundle, from, to - from + 1, part
    return true
  end

  local function has_payloads(request, r)
    if r.whole == nil then
      if request.has_large and request.handed_count > 0 and r.size == 1
        and request.handed_bytes + redis.call('HSTRLEN', payloads, r.bundle) > BYTES_MAX then
        request.is_cut = true
        return nil
      end
      r.whole = redis.call('HGET', payloads, r.bundle)
    end
    return not lacks_payloads(r, r.whole)
  end

  -- Give the saved states of a run with the claim, which counts its saves anew.
  local function give_saved(r, from, to)
    for _, position in ipairs(tails.saved_in(r, from, to)) do tails.set_save(r, position, 0) end
    beside.save_again(r, from, to)
  end

  -- Claim the items of a run.  True: that was all that fits.
  local function claim_run(request, r, from, to)
    if not hand(request, r, from, to) then return true end
    assert(request.handed_count <= request.most, 'mistake of zkrq: more items are handed out than the request may have')
    touch(r)
    if request.keeps_order and not places.is_ordered(r) then places.take_into_order(r) end
    if not r.row then
      local deadline = now_us + request.lease_ms * 1000
      assert(deadline > now_us, 'mistake of zkrq: a claim is over when it begins')
      r.row = rowset.add(r, request.owner, request.seq, request.lease_ms, deadline)
      r.soonest = r.soonest > 0 and math.min(r.soonest, deadline) or deadline
    end
    if places.is_ordered(r) then
      -- The tokens of such claims grow, so that a database can refuse the late write of an earlier holder.
      r.claim_n = math.max(r.n, number('claim_n') + 1, request.keeps_order and TOKENS_FROM or 0)
      set_number('claim_n', r.claim_n)
      request.handed_bytes = request.handed_bytes + grouping.tell_ended(r)
    end
    set(r, from, to, CLAIMED, r.row)
    count_attempts(r, from, to, 1)
    if r.fields ~= '' then give_saved(r, from, to) end
    return request.handed_count == request.most
  end

  -- Claim the items of a run; those with a saved state one by one, because that counts in the bytes of a reply.
  local function claim_each(request, r, from, to)
    if r.fields == '' or #tails.saved_in(r, from, to) == 0 then return claim_run(request, r, from, to) end
    for position = from, to do
      if claim_run(request, r, position, position) then return true end
    end
    return false
  end

  -- Claim queued items of a run, except those that were delivered too often.
  local function claim_within(request, r, from, to)
    local most = request.max_attempts
    to = math.min(to, from + request.most - request.handed_count - 1)
    local begin_at = from
    for position = from, most > 0 and to or from - 1 do
      if attempts_at(r, position) >= most then
        if position > begin_at and claim_each(request, r, begin_at, position - 1) then return true end
        request.removed_count = request.removed_count + 1
        bury(r, position, position, 'delivered ' .. attempts_at(r, position)
          .. ' times, and settled by none of those consumers', 0)
        begin_at = position + 1
      end
    end
    return begin_at <= to and claim_each(request, r, begin_at, to)
  end

  -- A claim arrived before the push itself, whose outcome is not known yet: wait as long as the push may still arrive.
  -- Items of the bundle whose payloads are there do not wait.
  local function wait_for_push(request, r, own_position, entry)
    local put_window_ms = request.put_window_ms
    local may_arrive, waits = r.pushed_at >= now_ms - 2 * put_window_ms, false
    for position = own_position or 1, own_position or r.size do
      if own_position or string.byte(r.states, position) == QUEUED then
        if r.whole and payload_at(r.whole, position) then
          if claim_within(request, r, position, position) then return true end
        elseif may_arrive then
          waits = true
        else
          request.removed_count = request.removed_count + 1
          remove(r, position, position, 0)
        end
      end
    end
    if waits then
      r.waits = not own_position
      redis.call('ZADD', scheduled, rank(r.priority, stands_at(r, now_us - r.shift + put_window_ms * 1000)), entry)
      if places.holds_group(r) then
        grouping.join(r, entry, true)
      elseif r.group then
        grouping.leave(r, entry)
      else
        append(leaving, ready, entry)
      end
    end
  end

  -- Hand out what an entry of ready names.  True: no further one fits.
  local function hand_out(request, r, position, entry)
    request.is_cut = request.is_cut or request.removed_count >= REMOVED_MAX or #request.handed >= 4 * RUNS_MAX
    if request.is_cut or request.handed_count == request.most then return true end
    r.is_ready = not position
    local has = has_payloads(request, r)
    if request.is_cut then return true end
    if r.whole and not is_readable(r.whole) then
      -- It is damaged: until it is mended (mend.lua), which enters it again, it does not stand before others.
      if r.group then grouping.leave(r, entry) else append(leaving, ready, entry) end
      return false
    end
    if not has then return wait_for_push(request, r, position, entry) end
    if has_tail(r) and has_expired(r) then
      request.removed_count = request.removed_count + 1
      return expire(r, 1, request.expired)
    end
    if position then return claim_within(request, r, position, position) end
    local from, to = string.find(r.states, 'Q+')
    while from do
      if claim_within(request, r, from, to) then return true end
      from, to = string.find(r.states, 'Q+', from)
      if request.handed_count == request.most then return true end
    end
  end

  -- Hand out a group's share, beginning with its entry in line.  True: no further one fits.
  local function hand_out_share(request, r, position, entry)
    local most = request.most
    request.is_cut = request.is_cut or request.removed_count >= REMOVED_MAX
    if request.is_cut then return true end
    request.has_groups = true
    request.share = request.share or math.ceil((most - request.handed_count) / redis.call('ZCARD', ready))
    local slots = grouping.slots_of(r)
    if slots <= 0 then
      request.removed_count = request.removed_count + 1
      return false
    end
    request.most = math.min(most, request.handed_count + math.min(request.share, slots))
    if not hand_out(request, r, position, entry) and not places.is_ordered(r) then
      each_member(r.group, request.most - request.handed_count, function(next_r, next_position, next_entry)
        -- What keeps the order comes when it is the first in line (of one group, clients may push both kinds).
        return places.is_ordered(next_r) or hand_out(request, next_r, next_position, next_entry)
      end)
    end
    request.most = most
    return request.is_cut or request.handed_count == most
  end

  -- In a queue that keeps an order, items that were pushed without a group before it did join the group of those, which has
  -- its turn then.  True: they are as many as one call takes.
  local function take_aside(request, r)
    request.is_cut = request.is_cut or request.removed_count >= REMOVED_MAX
    if request.is_cut then return true end
    touch(r)
    places.take_into_order(r)
    request.removed_count, request.has_groups, request.joined = request.removed_count + 1, true, true
    return false
  end

  -- Hand out the entries of ready, each once.
  local function hand_out_line(request)
    local function visit(r, position, entry)
      if request.keeps_order and not r.group then return take_aside(request, r) end
      if request.joined and r.group == '' then return false end -- what has joined may come first: after commit
      return (r.group and hand_out_share or hand_out)(request, r, position, entry)
    end
    local at, page = 0, PAGE_LEAST
    repeat
      page = math.min(page, request.most - request.handed_count)
      local entries = redis.call('ZRANGE', ready, at, at + page - 1)
      local is_done, removed = each_in(ready, entries, 'Q', 'R', visit)
      if #entries == 0 or is_done then return end
      at, page = at + #entries - removed, 2 * page
    until request.handed_count == request.most
  end

  -- A group that has more than its share goes to the end of the line: what is left of the room is shared again.
  local function hand_out_ready(request)
    local done
    repeat
      done, request.share = request.handed_count + request.removed_count, nil
      request.has_groups, request.joined = false, false
      hand_out_line(request)
      local is_over = not request.has_groups or request.is_cut or request.handed_count == request.most
        or request.handed_count + request.removed_count == done
      if not is_over then commit() end
    until is_over
  end

  -- Hand out the items of a run again, or of them those whose payloads are there.
  local function hand_all(request, r, from, to, is_whole)
    if is_whole then return hand(request, r, from, to) end
    local any = false
    for position = from, to do
      any = payload_at(r.whole, position) and hand(request, r, position, position) or any
    end
    return any
  end

  -- Queue items again that this request was given before, and that nobody has: all servers together gave it more than the
  -- limits allow.  One that was evicted had decided about some, which not every server has heard of; then the next one
  -- decided about others.  What this epoch has decided
  -- stays: this may be a first try that comes late, after its repetition was answered.  Return how many are left.
  local function take_back(r, token, too_many)
    if too_many == 0 or r.epoch == epoch then return too_many end
    each_run(r, 1, r.size, function(from, to, state, row)
      to = math.min(to, from + too_many - 1)
      if state == CLAIMED and token_at(r, row) == token and from <= to then
        touch(r)
        count_attempts(r, from, to, -1)
        requeue(r, from, to)
        too_many = too_many - (to - from + 1)
      end
    end)
    return too_many
  end

  -- The same for the limit of its group, of which as many were taken back as taken says.
  local function take_back_of_group(r, token, taken)
    local over = -grouping.slots_of(r) - (taken[r.group] or 0)
    if over > 0 and over < math.huge then
      taken[r.group] = (taken[r.group] or 0) + over - take_back(r, token, over)
    end
  end

  -- Tell whether an item may be handed out again in a group that keeps the order.  A server may have learned of a claim by
  -- another path than others, without the end of the item before: then it must not hand out this one, and later that one.
  -- If this epoch has decided about such a claim, that may have been something else, as a repeated push: then nobody gets
  -- it until its lease ends.
  local function is_in_order(r, token)
    if grouping.is_first_and_only(r) then return true end
    take_back(r, token, math.huge)
    return false
  end

  local function over_the_limits()
    if not limits.is_set() then return 0 end
    local slots, starts = limits.left()
    return math.max(0, -slots, -starts)
  end

  -- Hand out the remaining claims that this request was given before.
  local function hand_out_again(request)
    local token, lease_ms, too_many, taken = request.token, request.lease_ms, over_the_limits(), {}
    local begin_at = token .. '\0'
    local entries = redis.call('ZRANGEBYLEX', holdings, '[' .. begin_at, '(' .. token .. '\1', 'LIMIT', 0, CLAIM_MAX)
    for _, entry in ipairs(entries) do
      local r = open(string.sub(entry, #begin_at + 1))
      if r then too_many = take_back(r, token, too_many) end
      local may_have = r and (not places.is_ordered(r) or is_in_order(r, token))
      if may_have and r.group and not places.is_ordered(r) then take_back_of_group(r, token, taken) end
      local is_whole = may_have and has_payloads(request, r)
      if may_have and r.whole and is_readable(r.whole) and not request.is_cut then
        local mine = false
        each_run(r, 1, r.size, function(from, to, state, row)
          if state == CLAIMED and token_at(r, row) == token and hand_all(request, r, from, to, is_whole) then mine = true end
        end)
        if mine and places.is_ordered(r) then grouping.tell_ended(r) end
        if mine and r.epoch < epoch then
          touch(r)
          each_run(r, 1, r.size, function(_, _, state, row)
            if state == CLAIMED and token_at(r, row) == token then
              note_beginning(r, row)
              rowset.set(r, row, lease_ms, now_us + lease_ms * 1000)
            end
          end)
        elseif mine then
          r.told = true
        end
        if mine and r.fields ~= '' then
          each_run(r, 1, r.size, function(from, to, state, row)
            if state == CLAIMED and token_at(r, row) == token then beside.save_again(r, from, to) end
          end)
        end
      end
    end
  end

  -- Decide what the request is given, which commit writes.  A request that is refused must not come here.
  function claim_items(request, queue, clock, known_ms)
    local since_us = leading_since_us(clock)
    request.is_paused, request.paused_until_us = limits.pause(open(PAUSE))
    -- What is here was pushed before the limits were declared: claimed here, it would be claimed beside what is at home.
    request.is_paused = request.is_paused or request.is_elsewhere and limits.is_set()
    request.held_back, request.held_back_until_us = 0, math.huge
    request.keeps_order = limits.keep_order()
    if request.seq == request.last_seq then return hand_out_again(request) end
    -- List even a queue that never has an item; otherwise its owners would be kept forever.
    if request.last_seq == 0 then redis.call('SADD', queues, queue) end
    redis.call('HSET', owners, request.owner, request.seq)
    request.held_back, request.held_back_until_us = keep_house(since_us, known_ms, request.expired)
    if limits.is_set() then
      local slots, starts = limits.left()
      request.most = math.max(0, math.min(request.count, slots, starts))
    end
    if request.most > 0 and not request.is_paused then hand_out_ready(request) end
  end
end

local wait_or_wake
do
  -- Return the time until an item becomes ready by itself, by this request: next_ms of the reply.
  -- slots, starts, starts_at: what the limits leave (_limits.lua).
  local function next_ready_ms(request, left, slots, starts, starts_at)
    if request.is_paused then
      local until_us = request.paused_until_us or 0
      return until_us > now_us and math.ceil((until_us - now_us) / 1000) or -1
    end
    if left > 0 and slots > 0 and starts > 0 then return 0 end
    if left > 0 and starts <= 0 then return math.max(1, math.ceil((starts_at - now_us) / 1000)) end
    local held_back = request.held_back
    local deadline_us = tonumber(redis.call('ZRANGE', claimed, held_back, held_back, 'WITHSCORES')[2])
    local soonest_us = (deadline_us or held_back > 0) and math.min(deadline_us or math.huge, request.held_back_until_us)
    -- Where no slot is free, something that becomes due changes nothing.
    if left == 0 then
      each_priority(scheduled, function(priority, score)
        local due_us = due_of(priority, score)
        if not soonest_us or due_us < soonest_us then soonest_us = due_us end
      end)
      local rest_us = number('resting') > 0 and grouping.rest_ends_at()
      if rest_us then soonest_us = math.min(soonest_us or rest_us, rest_us) end
    end
    return soonest_us and math.max(0, math.ceil((soonest_us - now_us) / 1000)) or -1
  end

  -- After commit: have the waiter wait, or another one be woken.  Return next_ms.
  function wait_or_wake(request, waiter)
    local left = redis.call('ZCARD', ready)
    local slots, starts, starts_at = math.huge, math.huge, nil
    if limits.is_set() then slots, starts, starts_at = limits.left() end
    -- One that the rate stops learns when it may ask again: woken for each item that is pushed meanwhile, it would ask in
    -- vain.
    local is_stopped = left > 0 and starts <= 0 and not request.is_paused
    if waiter ~= '' and request.handed_count < request.count and not request.is_cut and not is_stopped then
      forget_before(waiting, now_ms - WAITER_MEMORY_MS)
      redis.call('ZADD', waiting, now_ms, waiter)
      openings.later = false -- it learns when something is due, or the first rest of a group ends
    end
    -- Items that are left are for another process.  A request for no items passes on its own wake-up, too: the item behind
    -- that may not be due yet, and then the next waiter learns when it is.
    local is_more = left > 0 and slots > 0 and not is_stopped
    local is_passed_on = request.count == 0 or (request.is_cut or request.handed_count == request.count) and is_more
    if is_passed_on or openings.later then wake(is_passed_on and 1 or 0) end
    return next_ready_ms(request, left, slots, starts, starts_at)
  end
end
