#!lua
-- purpose: adopt items that another shard has queued, under their ids, so that they can come home: each is here from now on,
-- scheduled for a moment that never comes.  Then that shard decides: what it removes as moved (cancel.lua) is admitted here
-- (admit.lua), and what has ended there is not.  So an item is never handed out on both, even if clients die in between, and what an
-- operator removes there meanwhile is not handed out here.
-- as_of_ms: when the items were read there, by the client's clock.  A late call could bring back what has come and ended here
-- since, and is forgotten; so it is refused as late pushes are.
-- record: of this item alone; its moments count from its arrival.  In a queue that keeps an order it gets the place of its
-- producer's clock, and does not hold its group before it has failed, as what was here before the order was declared
-- (_claiming.lua).
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- notes: why the item failed last, and its saved state.
-- ARGV: epoch generation queue put_window_ms as_of_ms / id record payload notes
-- reply: OK [outcome; by position: + new, K it is here, adopted or not, D it was here and has ended, F the queue is full, L too late, or what is here of it is damaged] [id record notes since; of all that is there]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, put_window_ms, as_of_ms)
  local _, most = limits.decide()
  local size, outcomes, is_ordered = number('queued') + number('claimed'), {}, limits.keep_order()
  local is_late = math.abs(now_ms - tonumber(as_of_ms)) > tonumber(put_window_ms)

  -- Write what is known of an item into its bundle here.
  local function write_item(r, position, attempts, due_us, failures, text, saved)
    touch(r)
    if is_ordered and not places.is_ordered(r) then places.take_into_order(r) end
    set_own(r, position, due_us + places.NEVER_US, failures)
    count_attempts(r, position, position, attempts - attempts_at(r, position))
    set(r, position, position, REQUEUED, 0)
    if text then note(r, position, failing.restamp(r, text)) end
    if saved or r.fields ~= '' then tails.set_save(r, position, saved and 0) end
    if saved then beside.save(r, position, saved) end
  end

  -- Return the bundle of an item that is new here, with a place for it: the others were refused as long as nobody says
  -- otherwise, and so was one more behind it (push_decided.lua).
  local function make_place(bundle, position, is_alone, before, r)
    if is_alone or not before then
      r.n, r.own = math.max(r.n, before and before.n or 0), ''
      if not is_alone then r.states, r.count = 'F', 1 end
      before = begin(bundle, r, before)
    end
    local missing = is_alone and 0 or position + 1 - before.size
    if missing > 0 then
      touch(before)
      before.states, before.named = before.states .. string.rep('F', missing), before.named .. string.rep(string.char(NONE), missing)
      before.attempts, before.size, before.count = before.attempts .. string.rep('\0\0', missing), position + 1, position + 1
    end
    return before
  end

  local function write_payload(r, position, payload, whole)
    if r.count > 0 then
      payload = payloads_of(r.size, function(at)
        if at == position then return payload_at(payload, 1) end
        return whole and payload_at(whole, at)
      end)
    end
    redis.call('HSET', payloads, r.bundle, payload)
  end

  -- Take the texts from what was sent: why it failed, saved state; nil without.
  local function texts_of(r, sent)
    beside.unpack(r, sent)
    local text, saved = r.notes and r.notes[1][2], r.saved and beside.state(r.saved[1])
    r.notes, r.saved = nil, nil
    tails.set_save(r, 1)
    return text, saved
  end

  local function adopt(id, packed, payload, sent)
    local bundle, position = item_at(id)
    local before, r = open(bundle), read_record(packed, now_us)
    local text, saved = nil, nil
    if sent ~= '' then text, saved = texts_of(r, sent) end
    local whole = before and redis.call('HGET', payloads, bundle)
    if order.damaged[bundle] or bundle ~= id and whole and not is_readable(whole, true) then return 'L' end
    local state = before and position <= before.size and string.byte(before.states, position)
    local is_known = state and state ~= REFUSED and not (state == GONE and is_expired(before, put_window_ms))
    local moment, failures = own_of(r, 1)
    local attempts, due_us = attempts_at(r, 1), (moment or r.due) + r.shift
    if is_known and places.due_of_adopted(before, position) then
      write_item(before, position, attempts, due_us, failures, text, saved) -- it may have been claimed there since
      -- The server that adopted it first may have failed before it gave the payload to this one.
      if not (whole and payload_at(whole, position)) then
        note_size(payload, 1)
        write_payload(before, position, payload, whole)
      end
      return 'K'
    elseif is_known then
      tell_as_is(before)
      return state == GONE and 'D' or 'K'
    elseif is_late then
      return 'L'
    elseif most and size >= most then
      return 'F'
    end
    note_size(payload, 1)
    r = make_place(bundle, position, bundle == id, before, r)
    write_item(r, position, attempts, due_us, failures, text, saved)
    write_payload(r, position, payload, whole)
    size = size + 1
    return '+'
  end

  for i = first, last, 4 do outcomes[#outcomes + 1] = adopt(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
  if #order > 0 then list_queue(queue) end
  commit()
  return {'OK', outcomes, decisions()}
end
