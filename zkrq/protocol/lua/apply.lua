#!lua flags=allow-oom
-- purpose: install decided records, each only if its version is greater than the one held.
-- Why the greater version wins.  Records of one bundle reach a server in any order, late, and more than once, from
-- clients that know nothing of each other.  If the greater version wins, servers that received the same records hold
-- the same state, whatever the order (Thomas' write rule, 1979).  Versions compare by epoch, then by count.  In one
-- epoch one primary decides, so equal versions are equal records.
-- * Without the rule: a claim is delayed on its way to follower F.  It expires, the item is claimed again and acked, on
--   F too.  Then the first claim reaches F, F becomes primary, and delivers an acked item.
-- * Without the epoch in front: primary P requeues an expired claim and grants the item again, as counts 5 and 6, which
--   reach F alone, and P is evicted.  The next primary knows count 4, and accepts the ack of the first holder as count
--   5. F keeps count 6, becomes primary, and delivers an acked item.
-- * Without a tombstone for an unknown id: a cancel overtakes the item's push, or an ack reaches a learner before a
--   page of its catch-up that was read before the ack.  Then the late record finds nothing to lose against, and the
--   removed item is delivered again.
-- A later decision may be about other items of the bundle.  So a record that loses tells at which items the greater one
-- says otherwise: in another state, or claimed under another token.
-- since: added to the record's moments, beside the moment clock of this server's clock (0: now), it gives them by that
-- clock; empty: they count from the record's own clock, which was now.
-- whole: 1 if a payload follows each (empty: none).
-- fenced: an owner to refuse from now on, or empty.
-- A payload is stored if an item of it is alive and it is not there.  If the items are gone here but their payloads are
-- not, a live record of a greater version keeps these, because no other server may have them; only a later life of the
-- id drops them.
-- cuts: payloads to drop, see _cutting.lua; empty: none.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead waiting
-- ARGV: epoch generation queue put_window_ms trim fenced whole clock cuts / id record notes since payload
-- reply: OK [position items; of each that lost to a greater version which says otherwise about these items: their positions, a byte each] [position; of each that lacks a payload]
-- reply: NOTINSYNC generation
-- reply: STALE epoch

-- Tell whether a record over a tombstone belongs to another item, which was given the same id: all records of one item
-- name the same moment of its push.
local function is_later_life(r, tombstone)
  if string.find(tombstone.states, ALIVE) or not string.find(r.states, ALIVE) then return false end
  return string.byte(tombstone.states) == REFUSED or r.pushed_at > tombstone.pushed_at
end

local function install(r, held, texts)
  if held and r.count == 0 and is_later_life(r, held) then redis.call('HDEL', payloads, r.bundle) end
  begin(r.bundle, r, held)
  r.changed = true
  beside.unpack(r, texts)
  note_owners(r)
end

-- The record that is held may have come without the results and reasons that this one has, because a later decision about
-- another item of the bundle overtook it.
local function complete_notes(r, held, texts)
  beside.unpack(r, texts)
  for _, position in ipairs(r.saved and r.pushed_at == held.pushed_at and tails.saved_in(held, 1, held.size) or {}) do
    local text = r.saved[position]
    if text and beside.is_later(held, position, text) then redis.call('HSET', notes, beside.entry(held, position), text) end
  end
  for _, noted in ipairs(r.notes or {}) do
    local position, text = noted[1], noted[2]
    local state, held_state = string.byte(r.states, position), string.byte(held.states, position)
    local lives = state ~= GONE and held_state and held_state ~= GONE
    if lives and r.pushed_at == held.pushed_at and failing.is_later(held, position, text) then
      redis.call('HSET', notes, entry_of(held, position), text)
    elseif state == held_state then
      local row = string.byte(r.named, position) - NONE
      results.complete(held, position, row > 0 and token_at(r, row) or '', text)
    end
  end
end

-- Return the positions at which the greater record that is held says otherwise.
local function otherwise(r, held)
  local positions = {}
  each_run(r, 1, r.size, function(from, to, state, row)
    for position = from, to do
      local held_row = position <= held.size and string.byte(held.named, position) - NONE
      if position > held.size or string.byte(held.states, position) ~= state
        or (state == CLAIMED and token_at(held, held_row) ~= token_at(r, row)) then
        positions[#positions + 1] = string.char(position - 1)
      end
    end
  end)
  return table.concat(positions)
end

-- Usually all payloads are there if any are, so only that is asked.  Where items are refused or gone, or were before, by
-- a record that this one replaces, it may be a part of them.  bare: positions of the records that lack payloads.
local function keep_payload(position, r, before, payload, bare)
  if not string.find(r.states, '[QRCD]') then return end
  if payload == '' and not string.find(r.states, '[XF]') and not (before and string.find(before.states, '[XF]')) then
    if redis.call('HEXISTS', payloads, r.bundle) == 0 then bare[#bare + 1] = position end
    return
  end
  local whole = redis.call('HGET', payloads, r.bundle)
  if payload ~= '' and whole and not is_readable(whole, true) then whole = false end
  if not lacks_payloads(r, whole) then return end
  if payload ~= '' then
    note_size(payload, r.size)
    whole = whole and joined(r.size, whole, payload) or payload
    redis.call('HSET', payloads, r.bundle, whole)
    enter_again(r)
  end
  if lacks_payloads(r, whole) then bare[#bare + 1] = position end
end

local function operation(queue, put_window_ms, trim, fenced, whole, clock, cuts)
  local ids, superseded, bare = {}, {}, {}
  local stride = whole == '1' and 5 or 4
  for i = first, last, stride do ids[#ids + 1] = ARGV[i] end
  if fenced ~= '' then fence_owner(fenced) end
  if #ids == 0 then
    cut_listed(cuts)
    return {'OK', superseded, bare}
  end
  local known = redis.call('HMGET', records, unpack(ids))
  local from_us = clock ~= '0' and tonumber(clock) or now_us

  local at = first
  for position, id in ipairs(ids) do
    local record, texts, since = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local payload = whole == '1' and ARGV[at + 4] or ''
    local before, r = open(id, known[position]), read_record(record, 0)
    local held = before
    r.bundle, r.record = id, record
    if not held or newer(r, held) then
      r.shift = since == '' and now_us - r.clock or since + from_us
      install(r, held, texts)
      held = r
    else
      local positions = otherwise(r, held)
      if positions ~= '' then
        local n = #superseded
        superseded[n + 1], superseded[n + 2] = position, positions
      end
      if texts ~= '' then complete_notes(r, held, texts) end
      if held.own ~= '' then endings.enter_again(held) end
    end
    keep_payload(position, held, before, payload, bare)
    at = at + stride
  end
  list_queue(queue)
  commit()
  if next(order.damaged) then damage.recount() end
  wake(readied)
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  cut_listed(cuts)
  return {'OK', superseded, bare}
end
