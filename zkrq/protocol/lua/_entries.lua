-- purpose: name an item with a moment of its own, in the indexes and beside its record: bundle, a zero byte, position.
local function entry_of(r, position)
  return r.bundle .. '\0' .. string.char(position)
end

-- Return the bundle that an entry of an index names, and the position of an item with a moment of its own.
local function read_entry(entry)
  local length = #entry
  if string.byte(entry, length - 1) ~= 0 then return entry end
  return string.sub(entry, 1, length - 2), string.byte(entry, length)
end

local places = {} -- of entries in groups (_groups.lua), and what else is read of ids and records
do
  -- Divide what Redis returns of an index with scores.
  function places.with_scores(listed)
    local entries, score_of = {}, {}
    for i = 1, #listed, 2 do entries[#entries + 1], score_of[listed[i]] = listed[i], listed[i + 1] end
    return entries, score_of
  end

  -- What is kept of a damaged bundle begins with when (milliseconds), and the lengths of its record, its payloads, its notes
  -- and the reason.
  places.KEPT = '<dI4I4I4H'

  -- Return this and the reason.
  function places.kept_head(kept)
    local KEPT_BYTES = 22
    if #kept < KEPT_BYTES then return kept end
    return string.sub(kept, 1, KEPT_BYTES + select(5, struct.unpack(places.KEPT, kept)))
  end

  -- Return how a stored record begins: its format and version.
  function places.head_of(packed)
    local HEAD_LENGTH = 9
    return string.sub(packed, SHIFT_BYTES + 1, SHIFT_BYTES + HEAD_LENGTH)
  end

  -- Tell whether an id is text in UTF-8, as clients send it.
  function places.is_text(id)
    if not string.find(id, '[\128-\255]') then return true end
    local forms = {'[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
      '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
      '\244[\128-\143][\128-\191][\128-\191]'}
    for _, form in ipairs(forms) do
      id = string.gsub(id, form, ' ')
    end
    return not string.find(id, '[\128-\255]')
  end

  local RANK_BYTES, STATE_BYTES = 10, 5
  local HAS_MEMBERS, KEEPS_ORDER, COUNTS = 1, 2, 4 -- flags of a group
  local BEGUN_BYTES = 60 -- of counters (_limits.lua)

  -- Tell whether an item was pushed into a group that keeps the order.
  function places.is_ordered(r)
    return r.claim_n ~= nil
  end

  -- Have an item keep the order of its group, because its queue does.  One without a group is in the group of those.
  function places.put_in_order(r, order)
    local GROUPED, ORDERED = 4, 8 -- flags in the marks of a record
    if not r.group then r.group, r.marks = '', r.marks + GROUPED end
    if not places.is_ordered(r) then r.order, r.claim_n, r.marks = order, 0, r.marks + ORDERED end
  end

  -- Have an item that was pushed before its queue kept an order keep that, too: at the place of its producer's clock, and
  -- without holding its group before it has failed.  The caller decides about it (touch).
  function places.take_into_order(r)
    places.put_in_order(r, -math.min(r.pushed_at, now_us / 1000))
    r.begun, r.standing = true, nil -- it may stand elsewhere now (place)
  end

  -- Tell whether such an item holds its group while it waits.  The sign of its order says otherwise after a failure whose
  -- policy lets the group go on.
  function places.holds_group(r)
    return r.claim_n ~= nil and r.order >= 0
  end

  -- Return what groups says of one: number of claimed items, whether there may be members, rank and entry of the first,
  -- whether it keeps the order, bundle and order of the item that a consumer ended last, nil if none is known, counters of
  -- the claims that have begun, nil if there are none, and until when the group rests, 0 if it does not.
  local function read(state)
    local claims, flags = struct.unpack('<I4B', state)
    local ended, order, at = nil, 0, STATE_BYTES + 1
    local keeps_order, begun, rests_us = flags % COUNTS >= KEEPS_ORDER, nil, 0
    if keeps_order then
      ended, order, at = struct.unpack('<Hc0d', state, at)
      if ended == '' then ended = nil end
    end
    if flags >= COUNTS then
      rests_us, begun, at = struct.unpack('<dc' .. BEGUN_BYTES, state, at)
    end
    local first = #state >= at and string.sub(state, at) or nil
    if first and #first <= RANK_BYTES or order - order ~= 0 or rests_us - rests_us ~= 0 then error('damaged') end
    return claims, flags % KEEPS_ORDER == HAS_MEMBERS, first, keeps_order, ended, order, begun, rests_us
  end

  -- Of one that is damaged nothing is known: the scrub counts it anew (repair_lines.lua).
  function places.read_state(state)
    if not state then return 0, false, nil, false, nil, 0, nil, 0 end
    local done, claims, has_members, first, keeps_order, ended, order, begun, rests_us = pcall(read, state)
    if not done then return 0, false, nil, false, nil, 0, nil, 0, true end
    return claims, has_members, first, keeps_order, ended, order, begun, rests_us
  end

  -- Return the same of a group without flags: number of claimed items, nil if it has flags, and rank and entry of the first.
  -- By bytes: one call instead of two.
  function places.read_simple(state)
    local a, b, c, d, flags = string.byte(state, 1, STATE_BYTES)
    if flags ~= 0 or #state > STATE_BYTES and #state <= STATE_BYTES + RANK_BYTES then return nil end
    return a + 256 * (b + 256 * (c + 256 * d)), #state > STATE_BYTES and string.sub(state, STATE_BYTES + 1) or nil
  end

  function places.write_simple(claims, first)
    return struct.pack('<I4B', claims, 0) .. (first or '')
  end

  -- Write what read_state reads.
  function places.write_state(claims, has_members, first, keeps_order, ended, order, begun, rests_us)
    local flags = (has_members and HAS_MEMBERS or 0) + (keeps_order and KEEPS_ORDER or 0) + (begun and COUNTS or 0)
    local state = struct.pack('<I4B', claims, flags)
    if keeps_order then state = state .. struct.pack('<H', ended and #ended or 0) .. (ended or '') .. struct.pack('<d', order) end
    if begun then state = state .. struct.pack('<d', rests_us) .. begun end
    return state .. (first or '')
  end

  -- How members names a group that rests, behind all others: a byte that no group begins with, because that is text in
  -- UTF-8, until when, and the group.
  places.RESTING = '\255'
  places.FLOWS = '\254' -- the same before what members has of flows (_flows.lua), behind all groups

  function places.resting(rests_us, group)
    return places.RESTING .. struct.pack('>d', rests_us) .. group
  end

  -- Return until when, and the group.
  function places.read_resting(member)
    local rests_us = #member >= 9 and struct.unpack('>d', member, 2) or 0
    return rests_us - rests_us == 0 and rests_us or 0, string.sub(member, 10)
  end

  -- Return the entry after its rank.
  function places.entry_in(placed)
    return string.sub(placed, RANK_BYTES + 1)
  end

  function places.entry_of_member(member)
    return places.entry_in(string.sub(member, (string.find(member, '\0', 1, true) or #member) + 1))
  end
end

-- Add one value, or two, to what is to be written.
local function append(to, name, a, b)
  local values = to[name]
  if not values then
    values = {n = 0}
    to[name] = values
  end
  local n = values.n + 1
  values[n] = a
  if b then
    n = n + 1
    values[n] = b
  end
  values.n = n
end
