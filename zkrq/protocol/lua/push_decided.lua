#!lua
-- purpose: decide pushes that only the primary can decide: of an item with a key, which is pushed only while no other
-- item with that key is queued or claimed; into a queue that has a limit; and of an item whose id some server knows to
-- be gone (push_plain.lua), or which belongs to a bundle: it was pushed before, without an answer; and of an item of a group
-- that keeps the order, behind all others of such groups: its producer says so, or the settings of the queue do.  A known
-- item is left
-- unchanged.  A tombstone does not count if it has expired, or only says that a push was refused, or if the queue was
-- deleted between the removal of the item and this push: the item begins a new life, above every tombstone of the
-- former one.
-- record: of this item alone; its n is at least that of every tombstone of this id that a server has named.  A row that names
-- nothing replaced says when the item is due at the latest, also one that takes its place (end_of).
-- One that another shard has adopted meanwhile counts as there.
-- replacing: 1 if each takes the place of the queued items with its key; claimed ones are left alone.  Both are one
-- decision, so no crash loses the old item without the new one.
-- key_window_ms: for how long from now each keeps others of its key away, whatever becomes of it; 0: while it is queued or
-- claimed.  Only pushes with a window ask for one.
-- again: 1 when another primary may have decided the same push before; what is refused now is removed there.
-- why: the primary decides plain pushes too, from now on (limits.decide).
-- in_order: 1 if the client knows that the queue may keep an order.  Where it does, and the client does not know, nothing is
-- decided: pushes that have to follow one another may be in flight together.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation again queue put_window_ms replacing key_window_ms in_order / id record payload
-- reply: OK [outcome; by position: + new, K known: it was there before, D done: pushed before and gone, each followed by the ids of those in whose place it was put; = and the id of the item that has the key, W and the id of the one that began its window and is gone, F full, L late, E its flow has ended, or is not known, O it has a delay or a priority, or is held for a flow, which contradicts the order that the queue keeps] [id record notes since; of all that is there] why
-- reply: DECIDE why
-- reply: NOTINSYNC generation
-- reply: STALE epoch

-- Return the bundles of the queued items that have this key, at most as many as a row can name.
local function queued_with(key)
  local NAMES_BYTES = 254 -- of their ids, in the row of the item in their place
  local found, room = {}, NAMES_BYTES
  local function consider(r)
    if r and string.find(r.states, '[QR]') and #r.bundle < room then
      found[#found + 1], room = r, room - #r.bundle - 1
    end
  end
  for id in string.gmatch(redis.call('HGET', keys, key) or '', '[^\1]+') do consider(open(id)) end
  consider(taken_now[key])
  return found
end

-- An item that is replaced again and again, each time with a delay, would never be due.  So it may have an end: the moment of
-- the first push and so many milliseconds.  The row that names what it has replaced has both, in the places of deadline and lease;
-- such a row is kept for good, and its moment is converted as any.  Return both; nil, nil without an end.
local function end_of(r)
  for row = 1, #r.rows / ROW_BYTES do
    local owner, seq, at_latest_ms, moment = row_at(r, row)
    if seq == 0 and at_latest_ms > 0 and string.sub(owner, 1, 1) == REPLACED then return moment + r.shift, at_latest_ms end
  end
end

-- Take the end from a record as its producer sends it, and return it.
local function take_end(r)
  if r.rows == '' then return nil end
  local end_us, at_latest_ms = end_of(r)
  r.rows, r.row_owners, r.named = '', {}, string.char(NONE)
  return end_us and {us = end_us, ms = at_latest_ms}
end

-- Remove items in whose place another one is put; return their ids, and its end: the first of theirs and its own.  Unless that one
-- has a delay of its own, it keeps the earliest of their moments: an item that is replaced again and again would never be due
-- otherwise.
local function replace(rivals, bundle, r, own_end)
  local ids, has_delay = {}, r.due > 0
  for i, rival in ipairs(rivals) do
    local due_us = (own_of(rival, 1) or rival.due) + rival.shift
    local end_us, at_latest_ms = end_of(rival)
    if end_us and not (own_end and own_end.us <= end_us) then own_end = {us = end_us, ms = at_latest_ms} end
    if not has_delay then
      r.due = math.min(r.due, due_us - now_us)
      if r.group and r.group == rival.group then
        local order = rival.order ~= 0 and math.abs(rival.order) or rival.pushed_at
        r.order = r.order > 0 and math.min(r.order, order) or order
      end
    end
    remove(rival, 1, 1, rowset.of_call(rival, 'Q' .. bundle))
    ids[i] = rival.bundle
  end
  if own_end then r.due = math.min(r.due, own_end.us - now_us) end
  return table.concat(ids, '\1'), own_end
end

-- Put an item behind all others of ordered groups.  The order is decided, because producers' clocks, arrivals on followers and
-- converted moments each reverse pushes that followed one another.  Like the moment of a push it is in milliseconds; a
-- microsecond is the least step.
local function set_order(r)
  r.order = math.max(number('order') + 0.001, now_us / 1000)
  set_number('order', r.order)
end

-- Have an item name those in whose place it was put, for as long as it is known: whoever pushes it again must have their
-- removal told to every server, whatever has become of the item meanwhile.  own_end: of the item, nil without one.
local function name_replaced(r, ids, own_end)
  local row = rowset.of_call(r, REPLACED .. ids)
  if own_end then rowset.set(r, row, own_end.ms, own_end.us) end
  set(r, 1, 1, string.byte(r.states), row)
end

-- Return the ids of the items in whose place one was put, and tell of their removal.  A primary that has the item from a
-- later decision may not know of it yet.  An id that was used again since names a later push: its tombstone counted for
-- two put windows.
local function replaced_by(r, put_window_ms)
  for row = 1, #r.rows / ROW_BYTES do
    local owner, seq = row_at(r, row)
    if seq == 0 and string.sub(owner, 1, 1) == REPLACED then
      local ids, deleted = string.sub(owner, 2), open(DELETED)
      for id in string.gmatch(ids, '[^\1]+') do
        local rival = open(id)
        local is_later = deleted and rival and rival.pushed_at >= deleted.pushed_at and r.pushed_at < deleted.pushed_at
        local is_same = rival and not is_later and rival.pushed_at <= r.pushed_at + put_window_ms
        if is_same and string.find(rival.states, '[QR]') then
          remove(rival, 1, 1, rowset.of_call(rival, 'Q' .. r.bundle))
        elseif is_same then
          tell_as_is(rival)
        end
      end
      return ids
    end
  end
  return ''
end

-- The window of a key is a record of its own, as a result without an item is (store.lua): a tombstone that is kept until the
-- moment in its own entry has passed.  So it is applied, copied, merged and dropped like any other, and a server that has
-- the item from another decision, a claim for instance, may lack it.  Its row names the item that began it.
local window_of, begin_window, keep_window, end_window
do
  local WINDOW, ITEM = '\1window ', 'W' -- before a key, and in the row before the id of the item

  -- Return the record of a window, nil if there is none; the id of the item that began it, unless it is over or that item was
  -- refused; and the record of that item and its state, nil if it is forgotten.
  function window_of(key)
    local w = open(WINDOW .. key)
    local began, window_ms = nil, 0
    if w then began, window_ms = own_of(w, 1) end
    if not began or began + w.shift + window_ms * 1000 <= now_us then return w end
    local id = string.sub((row_at(w, string.byte(w.named) - NONE)), 1 + #ITEM)
    local bundle, position = item_at(id)
    local r = open(bundle)
    local state = r and position <= r.size and string.byte(r.states, position)
    if state == REFUSED and r.pushed_at ~= w.pushed_at then return w, id end -- a later push of its id was refused
    if state == REFUSED then return w end
    return w, id, r, state
  end

  -- Write the record of a window, of nothing by now.
  local function write(key)
    local w = open(WINDOW .. key) or begin_itself(WINDOW .. key)
    touch(w)
    drop_own(w, 1, 1)
    set(w, 1, 1, GONE, 0)
    return w
  end

  function begin_window(key, id, pushed_at, window_ms)
    assert(window_ms > 0, 'mistake of zkrq: a window is over when it begins')
    local w = write(key)
    w.due, w.pushed_at, w.has_no_text = now_us, pushed_at, true
    set_own(w, 1, now_us, window_ms)
    set(w, 1, 1, GONE, rowset.of_call(w, ITEM .. id))
  end

  -- Every server must have the window of an item that is known already.  If it is not known here, it begins now, unless it
  -- must be over: it began within the put window of the push.
  function keep_window(key, id, pushed_at, window_ms, put_window_ms)
    local w, first = window_of(key)
    local row = w and string.byte(w.named) - NONE or 0
    local is_its_own = row > 0 and row_at(w, row) == ITEM .. id and w.pushed_at == pushed_at
    if first or is_its_own then
      tell_as_is(w)
    elseif pushed_at + window_ms + put_window_ms > now_ms then
      begin_window(key, id, pushed_at, window_ms)
    end
  end

  -- End the window that an item which is refused here may have begun on another server; not that of an earlier push of its id.
  function end_window(key, id, pushed_at)
    local w, first = window_of(key)
    if first and (first ~= id or w.pushed_at ~= pushed_at) then tell_as_is(w) else write(key) end
  end
end

local function operation(again, queue, put_window_ms, replacing, key_window_ms, in_order)
  local why, most = limits.decide()
  local keeps_order = string.find(why, 'o', 1, true) ~= nil
  if keeps_order and in_order == '0' then return {'DECIDE', why} end
  local floor_ms, size = math.max(now_ms - put_window_ms, number('floor_ms')), number('queued') + number('claimed')
  local outcomes, outcome_of, window_ms = {}, {}, tonumber(key_window_ms)

  -- Make room for an item in the bundle in which it was pushed; the others were refused as long as nobody says otherwise.
  -- So was one more behind it: payloads are taken for complete where no item is refused or gone (lacks_payloads).
  local function place_in(r, position)
    local missing = position + 1 - r.size
    if missing > 0 then
      r.states, r.named = r.states .. string.rep('F', missing), r.named .. string.rep(string.char(NONE), missing)
      r.attempts, r.size, r.count = r.attempts .. string.rep('\0\0', missing), position + 1, position + 1
    end
  end

  -- Refuse the items whose payloads never arrived here: their push has not completed.
  local function refuse_missing(r, whole)
    for position = 1, r.size do
      if string.find(r.states, '^[QRCD]', position) and not (whole and payload_at(whole, position)) then
        remove(r, position, position, 0, REFUSED)
      end
    end
  end

  -- Write the item in this state; return its bundle.
  local function enter(bundle, position, is_alone, before, r, state)
    if is_alone then
      begin(bundle, r, before)
      r.n = math.max(r.n, before and before.n or 0)
      touch(r)
      if state == QUEUED and flows.held_for(r) then
        flows.hold(r)
        state = REQUEUED
      end
      set(r, 1, 1, state)
      return r
    end
    local due_us, n = r.due + r.shift, r.n
    if not before then
      r.states, r.count = 'F', 1
      before = begin(bundle, r)
    end
    before.n = math.max(before.n, n)
    touch(before)
    place_in(before, position)
    if before.fields ~= '' then tails.set_save(before, position) end -- of a former life
    if state == QUEUED then
      set_own(before, position, due_us, 0)
      state = REQUEUED
    end
    set(before, position, position, state, 0)
    return before
  end

  -- Tell whether a deletion of the queue lies between the removal of an item and a later push of its id.  A push in the
  -- very millisecond of the deletion counts as later: a client may well do both within one.
  local function lies_before_deletion(tombstone, pushed_at)
    local deleted = open(DELETED)
    return deleted and tombstone.due + tombstone.shift <= deleted.due + deleted.shift
      and pushed_at > tombstone.pushed_at and pushed_at >= deleted.pushed_at
  end

  local function push(id, packed, payload)
    local bundle, position = item_at(id)
    local before, r = open(bundle), read_record(packed, now_us)
    if order.damaged[bundle] then return 'K' end -- it was there before; what has become of it is known once it is mended (mend.lua)
    local state = before and position <= before.size and string.byte(before.states, position)
    local own_end = take_end(r)
    note_size(payload, 1)
    local key = (tails.read(r.tail))
    local function refuse(why)
      if again == '1' and has_key(r) then
        for named in string.gmatch(redis.call('HGET', keys, key) or '', '[^\1]+') do
          local rival = open(named)
          if rival then tell_as_is(rival) end
        end
        if window_ms > 0 then end_window(key, id, r.pushed_at) end
      end
      if again == '1' then enter(bundle, position, bundle == id, before, r, REFUSED) end
      return why
    end
    local whole = bundle ~= id and before and redis.call('HGET', payloads, bundle)
    if whole and not is_readable(whole) then return 'K' end
    if bundle ~= id and state and state ~= GONE and state ~= REFUSED and not (whole and payload_at(whole, position)) then
      refuse_missing(before, whole)
      state = REFUSED
    end
    if state and state ~= GONE and state ~= REFUSED then
      complete(before, payload)
      if r.n > before.n then -- a tombstone of a former life would win over it on another server
        before.n = r.n
        touch(before)
      end
      tell_as_is(before)
      if window_ms > 0 then keep_window(key, id, before.pushed_at, window_ms, put_window_ms) end
      return 'K' .. replaced_by(before, put_window_ms)
    end
    local is_over = state == GONE and is_expired(before, put_window_ms) and not flows.keeps_name(before)
    if state == GONE and not is_over and not lies_before_deletion(before, r.pushed_at) then
      tell_as_is(before)
      if window_ms > 0 then keep_window(key, id, before.pushed_at, window_ms, put_window_ms) end
      return (places.has_left(before, position) and 'K' or 'D') .. replaced_by(before, put_window_ms)
    end
    if r.pushed_at < floor_ms or r.pushed_at > now_ms + put_window_ms then return refuse('L') end
    local flow, waits_for = flows.of(r), (flows.held_for(r))
    if flow and not flows.runs(flow) or waits_for and not flows.runs(waits_for) then return refuse('E') end
    if keeps_order then
      if r.due > 0 or r.priority > 0 or flows.held_for(r) then return refuse('O') end
      places.put_in_order(r, 0)
    end
    local taken = has_key(r) and replacing == '0' and is_taken(key)
    local window, first, former, former_state
    if window_ms > 0 then window, first, former, former_state = window_of(key) end
    if first then
      tell_as_is(window)
      if former then tell_as_is(former) end
    end
    if taken then
      tell_as_is(taken)
      return refuse('=' .. taken.bundle)
    end
    if first == id then return 'D' end -- its tombstone was dropped before
    if first then return refuse((former_state and former_state ~= GONE and '=' or 'W') .. first) end
    local rivals = replacing == '1' and queued_with(key) or {}
    if most and size >= most + #rivals then return refuse('F') end
    local named
    named, own_end = replace(rivals, bundle, r, own_end)
    if places.is_ordered(r) and r.order == 0 then set_order(r) end
    r = enter(bundle, position, bundle == id, before, r, QUEUED)
    if bundle ~= id then
      payload = payloads_of(r.size, function(at)
        if at == position then return payload_at(payload, 1) end
        return whole and payload_at(whole, at)
      end)
      redis.call('HSET', payloads, bundle, payload)
    else
      append(new, 'payloads', bundle, payload)
    end
    take_key(r)
    if window_ms > 0 then begin_window(key, id, r.pushed_at, window_ms) end
    if named ~= '' or own_end then name_replaced(r, named, own_end) end
    size = size + 1 - #rivals
    return '+' .. named
  end

  for i = first, last, 3 do
    local id = ARGV[i]
    local before = outcome_of[id]
    outcome_of[id] = before or push(id, ARGV[i + 1], ARGV[i + 2])
    outcomes[#outcomes + 1] = before and (string.gsub(before, '^%+', 'K')) or outcome_of[id]
  end
  if #order > 0 then list_queue(queue) end
  commit()
  wake(readied)
  return {'OK', outcomes, decisions(), why}
end
