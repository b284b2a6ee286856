#!lua
-- purpose: decide pushes that only the primary can decide: of an item with a key, which is pushed only while no other
-- item with that key is queued or claimed; into a queue that has a limit; and of an item whose id some server knows to
-- be gone (push_plain.lua), or which belongs to a bundle: it was pushed before, without an answer.  A known item is left
-- unchanged.  A tombstone does not count if it has expired, or only says that a push was refused, or if the queue was
-- deleted between the removal of the item and this push: the item begins a new life, above every tombstone of the
-- former one.
-- record: of this item alone; its n is at least that of every tombstone of this id that a server has named.
-- max_size: how many items may be queued or claimed, 0: any number.
-- again: 1 when another primary may have decided the same push before; what is refused now is removed there.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead tombstones keys expiring notes lead waiting
-- ARGV: epoch generation again queue put_window_ms max_size / id record payload
-- reply: OK [outcome; by position: + new, K known: it was there before, = and the id of the item that has the key, D done: pushed before and gone, F full, L late] [id record notes since; of all that is there]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(again, queue, put_window_ms, max_size)
  local floor_ms, size = math.max(now_ms - put_window_ms, number('floor_ms')), number('queued') + number('claimed')
  local most, outcomes, outcome_of = tonumber(max_size), {}, {}

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
    local state = before and position <= before.size and string.byte(before.states, position)
    note_size(payload, 1)
    local function refuse(why)
      if again == '1' then enter(bundle, position, bundle == id, before, r, REFUSED) end
      return why
    end
    local whole = bundle ~= id and before and redis.call('HGET', payloads, bundle)
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
      return 'K'
    end
    if state == GONE and not is_expired(before, put_window_ms) and not lies_before_deletion(before, r.pushed_at) then
      tell_as_is(before)
      return 'D'
    end
    if r.pushed_at < floor_ms or r.pushed_at > now_ms + put_window_ms then return refuse('L') end
    local taken = has_key(r) and is_taken((read_tail(r.tail)))
    if taken then
      tell_as_is(taken)
      return refuse('=' .. taken.bundle)
    end
    if most > 0 and size >= most then return refuse('F') end
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
    size = size + 1
    return '+'
  end

  for i = first, last, 3 do
    local id = ARGV[i]
    local before = outcome_of[id]
    outcome_of[id] = before or push(id, ARGV[i + 1], ARGV[i + 2])
    outcomes[#outcomes + 1] = before == '+' and 'K' or outcome_of[id]
  end
  if #order > 0 then list_queue(queue) end
  commit()
  wake(readied)
  return {'OK', outcomes, decisions()}
end
