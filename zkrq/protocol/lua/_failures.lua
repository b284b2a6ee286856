-- purpose: keep the last failures of an item beside its record: when, where, how long the attempt took, and why.
-- A plain text is the reason of the last one alone, as servers of level 1 keep it.  A list begins with a byte that no text has,
-- and the version of the record that added to it; then each failure, the latest first: its moment by the clock of the server that
-- decided it, milliseconds of the attempt, lengths of the consumer's description and of the reason, both.
-- The primary decides the whole list, and it travels with the record, so each server has the same.  One that missed a failure
-- takes the list of the greater version (apply.lua), whatever else it knows of the item.
-- A client of level 2 sends a failure as the same byte, the length of its description, that, and the reason.  So who sends a plain
-- reason begins no list.
local note, bury
local failing = {} -- one name for all
do
  local LIST = 255 -- first byte: not of UTF-8
  local HEAD, HEAD_BYTES = '<BI4I4', 9
  local ENTRY, ENTRY_BYTES = '<dI4BH', 15
  local KEPT = 5 -- failures of an item
  local REASON_MAX = 1000 -- bytes kept of the last reason
  local EARLIER_MAX = 200 -- bytes kept of each earlier one
  local UNKNOWN_MS = 2 ^ 32 - 1 -- in the place of a duration: nobody knows it

  -- Keep a text beside the record, and send it with that.
  function note(r, position, text)
    r.notes = r.notes or {}
    r.notes[#r.notes + 1] = {position, text}
  end

  local function is_list(text)
    return string.byte(text) == LIST
  end

  -- Cut a text, between two characters.
  local function cut(text, most)
    if #text <= most then return text end
    while most > 0 and string.find(text, '^[\128-\191]', most + 1) do most = most - 1 end
    return string.sub(text, 1, most)
  end

  local function packed(at_us, took_ms, where, reason, most)
    reason = cut(reason, most)
    return struct.pack(ENTRY, at_us, took_ms, #where, #reason) .. where .. reason
  end

  -- Return the failures that a text names, packed as earlier ones, as far as it can be read.
  local function earlier_in(text)
    if text == '' then return '' end
    if not is_list(text) then return packed(0, UNKNOWN_MS, '', text, EARLIER_MAX) end
    local found, at = {}, HEAD_BYTES + 1
    while #found < KEPT - 1 and at + ENTRY_BYTES <= #text + 1 do
      local at_us, took_ms, where_bytes, reason_bytes = struct.unpack(ENTRY, text, at)
      local where_at = at + ENTRY_BYTES
      local reason_at = where_at + where_bytes
      at = reason_at + reason_bytes
      if at > #text + 1 then break end
      local where, reason = string.sub(text, where_at, reason_at - 1), string.sub(text, reason_at, at - 1)
      found[#found + 1] = packed(at_us, took_ms, where, reason, EARLIER_MAX)
    end
    return table.concat(found)
  end

  -- Return what is known of the failures of an item, with those of this call; empty: nothing.
  local function held_of(r, position)
    for i = #(r.notes or {}), 1, -1 do
      if r.notes[i][1] == position then return r.notes[i][2] end
    end
    return own_of(r, position) and redis.call('HGET', notes, entry_of(r, position)) or ''
  end

  -- Keep one more failure, before the item has a moment of its own for it.  took_us: of the attempt, nil: there was none that is known.
  function failing.add(r, position, text, took_us)
    if text == '' then return end
    local held = held_of(r, position)
    if not is_list(text) and not is_list(held) then return note(r, position, string.sub(text, 1, REASON_MAX)) end
    local where, reason = '', text
    if is_list(text) then
      local where_bytes = string.byte(text, 2) or 0
      where, reason = string.sub(text, 3, 2 + where_bytes), string.sub(text, 3 + where_bytes)
    end
    local took_ms = took_us and math.min(UNKNOWN_MS - 1, math.floor(math.max(0, took_us) / 1000)) or UNKNOWN_MS
    local last = packed(now_us, took_ms, where, reason, REASON_MAX)
    note(r, position, struct.pack(HEAD, LIST, r.epoch, r.n) .. last .. earlier_in(held))
  end

  -- Have a list be one of this version of the record: it came from another shard, whose versions say nothing here.
  function failing.restamp(r, text)
    if not is_list(text) then return text end
    return struct.pack(HEAD, LIST, r.epoch, r.n) .. string.sub(text, HEAD_BYTES + 1)
  end

  local function version_of(text)
    local _, epoch_of, n_of = struct.unpack(HEAD, text)
    return {epoch = epoch_of, n = n_of}
  end

  -- Tell whether a text is a list of a later version than what is here of an item that lives.
  function failing.is_later(r, position, text)
    if #text < HEAD_BYTES or not is_list(text) or not own_of(r, position) then return false end
    local held = redis.call('HGET', notes, entry_of(r, position)) or ''
    return #held < HEAD_BYTES or not is_list(held) or newer(version_of(text), version_of(held))
  end

  -- row: of the request that does it; 0: none, nil: as it was.  of_claim: row of the claim whose owner reports the failure, which
  -- counts; nil: none does.
  function bury(r, from, to, reason, row, of_claim)
    touch(r)
    local took_us = of_claim and now_us - began_at(r, of_claim)
    for position = from, to do
      failing.add(r, position, reason, took_us)
      local _, failures = own_of(r, position)
      set_own(r, position, now_us, failures + (of_claim and 1 or 0))
    end
    set(r, from, to, DEAD, row)
  end
end
