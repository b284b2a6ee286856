-- purpose: keep the indexes of a queue: ready or scheduled, claimed, holdings, dead, ended, the list of tombstones.
-- Scores are this server's clock in microseconds; ready and scheduled are ordered by priority (0 to 9, higher first),
-- then due time.  They name a bundle while an item is queued with it, and items with a moment of their own each: bundle,
-- a zero byte, position; so does dead. claimed names bundles by their first deadline (or an earlier moment).
-- holdings lists the bundles of each claim request, ordered by name: token, a zero byte, bundle.
-- What a call has changed is written at its end, in an order of which every prefix is safe, because Redis does not undo a
-- script that fails half-way: an index may name an item that has left (readers of an index check the record), but no
-- item is ever without its index.
-- Enter an entry into ready or scheduled, and take it from the other one if it was queued before.
local function enter_queue(entry, priority, due_us, was_queued)
  local into, other = ready, scheduled
  if due_us > now_us then into, other, openings.later = scheduled, ready, true end
  append(entering, into, text_of(rank(priority, math.min(due_us, LAST_MOMENT))), entry)
  if was_queued then append(leaving, other, entry) end
end

-- Return when an item stands in ready or scheduled: when it is due.  One whose time to live ends before is dropped then,
-- so that nothing stands in scheduled for later that has expired (_totals.lua).
local function stands_at(r, moment)
  local due_us = moment + r.shift
  if r.marks % 2 ~= EXPIRES then return due_us end
  local _, expires_us = tails.read(r.tail)
  return math.min(due_us, expires_us + r.shift)
end

-- The same for an entry of a bundle; one of a group stands in line with its group once it is due.
local function enter(r, entry, due_us, was_queued)
  if not r.group then return enter_queue(entry, r.priority, due_us, was_queued) end
  if due_us <= now_us then
    grouping.join(r, entry)
    if was_queued then append(leaving, scheduled, entry) end
  else
    openings.later = true
    append(entering, scheduled, text_of(rank(r.priority, math.min(due_us, LAST_MOMENT))), entry)
    if places.holds_group(r) then
      grouping.join(r, entry, true)
    elseif was_queued then
      grouping.leave(r, entry)
    end
  end
end

local look_after
do
  -- A key names all items that have it: one, as far as one server decides; several after two servers decided separately.
  local function keep_key(key, id, lives)
    local named, ids = redis.call('HGET', keys, key) or '', {lives and id or nil}
    for other in string.gmatch(named, '[^\1]+') do
      if other ~= id then ids[#ids + 1] = other end
    end
    table.sort(ids)
    local naming = table.concat(ids, '\1')
    if naming == named then return end
    if naming == '' then redis.call('HDEL', keys, key) else redis.call('HSET', keys, key, naming) end
  end

  -- Maintain what only marked items have: a key, which names the item while it is queued or claimed, and a moment at
  -- which it expires, which counts while it is queued.
  function look_after(r)
    local key, expires_us = tails.read(r.tail)
    if has_key(r) then keep_key(key, r.bundle, string.find(r.states, '[QRC]') ~= nil) end
    if r.marks % 2 == 0 then return end
    if string.find(r.states, '[QRC]') then
      local counts = string.find(r.states, 'C', 1, true) and -1 or 1 -- not while it is claimed
      redis.call('ZADD', expiring, counts * (expires_us + r.shift), r.bundle)
    else
      redis.call('ZREM', expiring, r.bundle)
    end
  end
end

-- Tell whether the item has outlived its time to live; only for items that are not claimed.
local function has_expired(r)
  if r.marks % 2 ~= EXPIRES then return false end
  local _, expires_us = tails.read(r.tail)
  return expires_us + r.shift <= now_us
end

local place
do
  local TOMBSTONE_BYTES = 140 -- of one in Redis, beside its record and twice its id; measured

  -- is_ready: the call found the entry in ready.  Otherwise it may be in either: a due item is promoted by a claim alone.
  local function leave(r, entry, is_ready)
    if r.group then grouping.leave(r, entry) else append(leaving, ready, entry) end
    if not is_ready then append(leaving, scheduled, entry) end
  end

  -- Note the runs in which two forms of a bundle differ: from, to, old state, old row, state, row.  Halves that are equal
  -- are passed over: most decisions about large bundles change a few items.  If equal numbers may stand for different
  -- claims, all runs are noted.
  local SHORT = 8
  local function add_changes(runs, old, old_named, new, new_named, from, to, all)
    while from <= to do
      if not all and string.sub(old, from, to) == string.sub(new, from, to)
        and string.sub(old_named, from, to) == string.sub(new_named, from, to) then return end
      local last = from == to and to
        or math.min(run_end(old, from), run_end(new, from), run_end(old_named, from), run_end(new_named, from), to)
      if all or last == to or to - from < SHORT then
        local state, row, old_state, old_row = string.byte(new, from), string.byte(new_named, from),
          string.byte(old, from), string.byte(old_named, from)
        if all or state ~= old_state or row ~= old_row then
          runs[#runs + 1] = {from, last, old_state, old_row - NONE, state, row - NONE}
        end
        from = last + 1
      else
        local middle = math.floor((from + to) / 2)
        add_changes(runs, old, old_named, new, new_named, from, middle, all)
        from = middle + 1
      end
    end
  end

  local NOTHING = {states = '', named = '', rows = '', own = '', fields = '', size = 0, pushed_at = 0}

  local function changes_between(b, r)
    local runs, size = {}, math.max(b.size, r.size)
    local old, old_named, new, new_named = b.states, b.named, r.states, r.named
    if b.size < size then
      old, old_named = old .. string.rep('-', size - b.size), old_named .. string.rep(string.char(NONE), size - b.size)
    elseif r.size < size then
      new, new_named = new .. string.rep('X', size - r.size), new_named .. string.rep(string.char(NONE), size - r.size)
    end
    local same_rows = b.rows == '' or b.rows == string.sub(r.rows, 1, #b.rows) and b.row_owners[1] == r.row_owners[1]
    add_changes(runs, old, old_named, new, new_named, 1, size, not same_rows)
    return runs
  end

  -- Tell whether a moment is another one.  By one clock it is not, whatever the difference to this clock is.
  local function has_moved(b, r, moment)
    return b.is_lost or b[moment] ~= r[moment] and b[moment] + b.shift ~= r[moment] + r.shift
  end

  -- Move items that keep their state, and have another moment: decisions in between were missed.  Forget why items failed
  -- that are gone, or have never failed as far as another primary knows.
  local function move_own(b, r)
    for at = 1, #b.own, OWN_BYTES do
      local position = string.byte(b.own, at)
      if not own_of(r, position) then append(new, 'old_notes', entry_of(r, position)) end
    end
    local at_b = 1
    for at = 1, #r.own, OWN_BYTES do
      local position, moment = struct.unpack('<Bd', r.own, at)
      while (string.byte(b.own, at_b) or 256) < position do at_b = at_b + OWN_BYTES end
      local state = string.byte(r.states, position)
      if state == string.byte(b.states, position)
        and (b.is_lost or string.sub(r.own, at, at + OWN_BYTES - 1) ~= string.sub(b.own, at_b, at_b + OWN_BYTES - 1)) then
        if state == REQUEUED and not r.is_elsewhere then enter(r, entry_of(r, position), stands_at(r, moment), true) end
        if state == DEAD then append(entering, dead, moment + r.shift, entry_of(r, position)) end
      end
    end
  end

  -- Enter the items of a run, which have a moment of their own now or had one before.
  local function place_own(r, from, to, old_state, state)
    for position = from, to do
      local entry = entry_of(r, position)
      if r.is_elsewhere then
        -- all of its entries are entered again (change_group)
      elseif state == REQUEUED then
        enter(r, entry, stands_at(r, (own_of(r, position))), old_state == REQUEUED)
      elseif old_state == REQUEUED then
        leave(r, entry, false)
      end
      if state == DEAD then
        append(entering, dead, own_of(r, position) + r.shift, entry)
      elseif old_state == DEAD then
        append(leaving, dead, entry)
      end
    end
  end

  -- Call visit(entry, position) with the entries of what is queued of a bundle; nil: with its bundle.
  local function each_queued(r, bundle, visit)
    if string.find(r.states, 'Q', 1, true) then visit(bundle) end
    local position = string.find(r.states, 'R', 1, true)
    while position do
      visit(bundle .. '\0' .. string.char(position), position)
      position = string.find(r.states, 'R', position + 1, true)
    end
  end

  local function count_all_claims(r, by)
    if r.group and string.find(r.states, 'C', 1, true) then
      grouping.count_claims(r, by * select(2, string.gsub(r.states, 'C', '')))
    end
  end

  -- Take all entries of a bundle to another place in line, or another group: two servers took pushes of one id that said
  -- otherwise.  The old ones are removed immediately, because removals that are collected come last.
  local function change_group(b, r)
    each_queued(b, r.bundle, function(entry)
      redis.call('ZREM', scheduled, entry)
      if b.group then grouping.remove(b, entry) else redis.call('ZREM', ready, entry) end
    end)
    each_queued(r, r.bundle, function(entry, position)
      enter(r, entry, stands_at(r, position and own_of(r, position) or r.due), false)
    end)
  end

  -- Write the saved states that came with a record, unless a later one is there, and drop those of items that have none any
  -- more.
  local function place_saved(b, r)
    for _, position in ipairs(b.fields ~= r.fields and tails.saved_in(b, 1, b.size) or {}) do
      if not tails.save_of(r, position) then append(new, 'old_notes', beside.entry(r, position)) end
    end
    for _, position in ipairs(r.saved and tails.saved_in(r, 1, r.size) or {}) do
      local text = r.saved[position]
      if text and beside.is_later(r, position, text) then append(new, 'notes', beside.entry(r, position), text) end
    end
  end

  local WAITING = {[QUEUED] = true, [REQUEUED] = true, [CLAIMED] = true}
  local LIVE = {[QUEUED] = true, [REQUEUED] = true, [CLAIMED] = true, [DEAD] = true}

  -- Write all that follows from the difference between a bundle as it is stored and as it is now.
  function place(r)
    local b, began, ended, has_turn = r.before or NOTHING, {}, {}, false
    -- Only a record that has taken another's place: a decision changes the sign of an order at most (standing_of).
    r.is_elsewhere = r.begun and (b.group ~= r.group or standing_of(b) ~= standing_of(r)) and string.find(b.states, '[QR]')
    if r.is_elsewhere then change_group(b, r) end
    local is_ordered = places.is_ordered(r)
    if is_ordered then
      -- The items of a bundle share the sign of the order, by which those that wait are members of their group, or are not.
      if r.before and places.holds_group(b) ~= places.holds_group(r) then b.is_lost = true end
      if math.abs(r.order) > number('order') then set_number('order', math.abs(r.order)) end
      if r.claim_n > number('claim_n') then set_number('claim_n', r.claim_n) end
    end
    if places.is_ordered(b) and not (is_ordered and b.group == r.group) then
      grouping.forget_ended(b, r.bundle)
    end
    if b.group ~= r.group then
      count_all_claims(b, -1)
      count_all_claims(r, 1)
    end
    for _, run in ipairs(changes_between(b, r)) do
      local from, to, old_state, old_row, state, row = unpack(run)
      local size = to - from + 1
      tally[old_state] = (tally[old_state] or 0) - size
      tally[state] = (tally[state] or 0) + size
      if LIVE[old_state] and not LIVE[state] then tally.removed = tally.removed + size end
      if (state == QUEUED or state == REQUEUED) and old_state ~= QUEUED and old_state ~= REQUEUED then
        readied = readied + size
      end
      if state ~= old_state and not WAITING[state] and number('awaited') > 0 then
        results.note_ended(r, from, math.min(to, r.size))
      end
      if state ~= old_state and is_ordered and not WAITING[state] then grouping.note_ended(r, from) end
      if b.own ~= '' and (state == GONE or old_state == GONE) then
        results.forget_others(b, r, from, to, old_state == state)
      end
      local old_token = old_state == CLAIMED and token_at(b, old_row)
      local token = state == CLAIMED and token_at(r, row)
      if old_token then ended[old_token] = true end
      if token then
        began[token] = true
        if token ~= old_token then
          tally.begun = tally.begun + size
          if r.group then
            has_turn = r.group == b.group
            grouping.count_begun(r, size, has_turn and not old_token and size or 0, has_turn)
          end
        end
      elseif old_token then
        openings.freed = openings.freed + size
        if r.group and r.group == b.group then grouping.count_claims(r, -size) end
      end
      if old_state == REQUEUED or old_state == DEAD or state == REQUEUED or state == DEAD then
        place_own(r, from, to, old_state, state)
      end
    end
    local is_alive = string.find(r.states, ALIVE)
    if r.own ~= b.own and (is_alive or b.own ~= '') or b.is_lost then move_own(b, r) end
    if b.is_lost and string.find(r.states, '[QR]') then readied = readied + 1 end
    local queued, was_queued = string.find(r.states, 'Q', 1, true), string.find(b.states, 'Q', 1, true)
    if r.is_elsewhere then
      -- done
    elseif queued then
      -- A bundle of a group of which a part is claimed goes to the end of the line.
      if not was_queued or has_moved(b, r, 'due') or b.priority ~= r.priority or has_turn and not r.waits then
        enter(r, r.bundle, stands_at(r, r.due), was_queued)
      end
    elseif was_queued then
      leave(r, r.bundle, r.is_ready)
    end
    local is_claimed, was_claimed = string.find(r.states, 'C', 1, true), string.find(b.states, 'C', 1, true)
    if is_claimed then
      if not was_claimed or has_moved(b, r, 'soonest') then
        append(entering, claimed, text_of(r.soonest + r.shift), r.bundle)
      end
    elseif was_claimed then
      append(leaving, claimed, r.bundle)
    end
    for token in pairs(began) do append(entering, holdings, '0', token .. '\0' .. r.bundle) end
    for token in pairs(ended) do
      if not began[token] and not (is_claimed and holds(r, token)) then
        append(leaving, holdings, token .. '\0' .. r.bundle)
      end
    end
    if has_tail(r) then look_after(r) end
    if r.fields ~= '' or b.fields ~= '' then flows.index(b, r) end
    if string.byte(r.bundle) == 1 and flows.is_itself(r.bundle) then flows.index_itself(b, r) end
    -- What is counted from here on has come since the deletion (statistics.lua).
    if r.bundle == DELETED and r.pushed_at > b.pushed_at then tally.removed = tally.removed - number('removed') end
    if r.bundle == LIMITS then
      limits.note(r)
      endings.trim()
    end
    if (r.own ~= '' or b.own ~= '') and endings.size() > 0 then endings.index(b, r) end
    -- The records of a pause and of limits are never dropped, because their versions would start again.
    if not is_alive and r.bundle ~= PAUSE and r.bundle ~= LIMITS then
      local bytes = TOMBSTONE_BYTES + 2 * #r.bundle + #r.record
      if r.own ~= '' then bytes = bytes + results.bytes(r) end
      append(new, 'tombstones', struct.pack('<ddI4I4I4', now_ms, r.pushed_at, r.epoch, r.n, bytes) .. r.bundle)
      tally.bytes, removals = tally.bytes + bytes, removals + 1
    end
    if r.saved or b.fields ~= r.fields then place_saved(b, r) end
    if r.notes and r.own ~= '' then
      local bytes = is_alive and results.bytes_beside(r) or 0
      if bytes > 0 then append(new, 'tombstones', struct.pack('<ddI4I4I4', now_ms, 0, r.epoch, r.n, bytes) .. r.bundle) end
      tally.bytes = tally.bytes + bytes
      local has_own = r.size > 1 and {} or nil
      for at = 1, has_own and #r.own or 0, OWN_BYTES do has_own[string.byte(r.own, at)] = true end
      for _, noted in ipairs(r.notes) do
        -- Not of one that is gone.
        if not has_own or has_own[noted[1]] then append(new, 'notes', entry_of(r, noted[1]), noted[2]) end
      end
    end
  end
end

-- Call visit(r, position, entry) with each bundle, or item with a moment of its own (position), that entries of an index
-- name, until it returns true: then return that.  shared, own: in which states the index names a bundle, and an item; an
-- entry whose item has left them is removed.  Return also how many were.  name_of: reads
-- the entry from what the index has, as in members.
local function each_in(index, entries, shared, own, visit, name_of)
  if not entries[1] then return false, 0 end
  local bundles, positions = {}, {}
  for i, entry in ipairs(entries) do bundles[i], positions[i] = read_entry(name_of and name_of(entry) or entry) end
  local held, removed = redis.call('HMGET', records, unpack(bundles)), 0
  for i, entry in ipairs(entries) do
    local position = positions[i]
    local r = open(bundles[i], held[i])
    local states, wanted = r and r.states, shared
    if position then states, wanted = r and string.sub(states, position, position), own end
    if states and wanted and string.find(states, wanted) then
      if visit(r, position, entry) then return true, removed end
    else
      redis.call('ZREM', index, entry)
      if index == ready and r and r.group then grouping.leave(r, entry) end
      removed = removed + 1
    end
  end
  return false, removed
end

-- Have all indexes written again, whatever they say of a bundle.
local function enter_again(r)
  change(r)
  if r.before then r.before.is_lost = true end
end

-- A claim may have arrived before its bundle's own push: then the payloads are still missing, and items may wait for
-- them (claim.lua).
local function complete(r, payload)
  if string.find(r.states, '[QRCD]') and redis.call('HSETNX', payloads, r.bundle, payload) == 1 then enter_again(r) end
end

local function write(command, key, values)
  local WRITE_MAX = 4000 -- values in one command, below the limit of unpack
  if not values then return end
  if values.n <= WRITE_MAX then return redis.call(command, key, unpack(values, 1, values.n)) end
  for from = 1, values.n, WRITE_MAX do
    redis.call(command, key, unpack(values, from, math.min(from + WRITE_MAX - 1, values.n)))
  end
end

local commit
do
  -- Return the first deadline of the rows in use, 0 if there is none.
  local function first_deadline(r)
    local first = 0
    for row = 1, #r.rows / ROW_BYTES do
      if is_live(r, row) then
        local _, _, _, deadline = row_at(r, row)
        if first == 0 or deadline < first then first = deadline end
      end
    end
    return first
  end

  -- Conclude what was decided here about a bundle.
  local function conclude(r)
    -- Whatever decides a bundle touches it first, or the decision has the version of another one.
    assert(r.epoch == epoch and r.clock == now_us, 'mistake of zkrq: a decision is of another call')
    if not string.find(r.states, ALIVE) and (not r.before or string.find(r.before.states, ALIVE)) then r.due = now_us end
    if not string.find(r.states, 'C', 1, true) then
      r.soonest = 0
    elseif #r.rows <= 8 * ROW_BYTES then
      r.soonest = first_deadline(r)
    end
  end

  function commit()
    local is_idle = not (order[1] or lines[1] or next(entering) or next(leaving) or next(new))
    if is_idle then return write_numbers() end
    local has_history
    if order.has_flows then flows.raise_stamps() end
    for _, r in ipairs(order) do
      if r.changed then
        if r.decided then
          if has_history == nil then has_history = endings.size() > 0 end
          if has_history then endings.note_moments(r) end
          conclude(r)
        end
        r.record = r.record and not r.decided and r.record or write_record(r)
        append(new, 'records', r.bundle, struct.pack('<d', r.shift) .. r.record)
        place(r)
        r.changed, r.begun, r.before = false, false, nil
      end
    end
    if order.acked then flows.count_acked() end
    if lines[1] then grouping.line_up() end
    write('HSET', payloads, new.payloads)
    write('HSET', notes, new.notes)
    for index, values in pairs(entering) do write('ZADD', index, values) end
    write('HSET', records, new.records)
    write('HSET', groups, new.groups)
    for index, values in pairs(leaving) do write('ZREM', index, values) end
    if entering[recent] then endings.trim() end
    write('HDEL', notes, new.old_notes)
    write('HDEL', groups, new.old_groups)
    write('HDEL', lead, new.old_numbers)
    write('HSET', lead, new.numbers)
    write('RPUSH', tombstones, new.tombstones)
    add_number('queued', (tally[QUEUED] or 0) + (tally[REQUEUED] or 0))
    add_number('claimed', tally[CLAIMED] or 0)
    if tally.begun > 0 then limits.count_begun(tally.begun) end
    local died = tally[DEAD] or 0
    if died > 0 then endings.put_behind(dead) end
    add_number('dead', died)
    add_number('removed', tally.removed)
    add_number('tombstone_bytes', tally.bytes)
    results.tell_ended(new.ended)
    write_numbers()
    nothing_to_write()
  end
end
