#!lua flags=allow-oom
-- purpose: keep results that belong to no item of the queue, under ids of the caller's: a tombstone with a note, as the
-- result of an item is (_results.lua), so it travels, merges and goes as that does.
-- call: id of this call, the row of the record.  A repetition finds it there, and changes nothing, even if others have
-- stored or forgotten since: a first try whose connection broke may be executed seconds after its repetition.
-- how: set and the milliseconds for which it is kept and its rank; text is the result, which replaces none of greater
-- rank: 0 not the last one, 1 a failure, 2 a success; count and the milliseconds, text is the id of a counter: it is incremented if this result was
-- not counted before, which the result remembers; forget.
-- A record's attempts tell how far it is: its rank, plus 4 if it was counted.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation queue put_window_ms trim / id call how text
-- reply: OK [number; the counter's value, 0 without one; of set 1, 0 where one of greater rank stays; -1 under the id of an item] [id record notes since; of all that is there]
-- reply: NOTINSYNC generation
-- reply: STALE epoch

local COUNTED = 4
local PARTS_MAX = 100 -- parts of results that are forgotten at once

-- Return the record of an id, its text and its attempts; nil, 0 where nothing is kept.
local function kept_of(id)
  local r = open(id)
  local removed_at, ttl_ms = nil, 0
  if r then removed_at, ttl_ms = own_of(r, 1) end
  if not removed_at or removed_at + r.shift + ttl_ms * 1000 <= now_us then return r, nil, 0 end
  -- What this call has written is not in Redis yet.
  return r, r.notes and r.notes[1][2] or redis.call('HGET', notes, entry_of(r, 1)) or '', attempts_at(r, 1)
end

-- Tell whether a call was executed before; others may have stored or forgotten since.
local function is_repeated(r, call)
  return r ~= nil and rowset.find(r, call) ~= nil
end

local begin_call
do
  -- Remember a call in place of the oldest one; return its row.
  local function remember_call(r, call)
    local CALLS_KEPT = 4 -- the last calls about a result, which its record remembers
    local rows, row_owners, oldest = '', {}, #r.rows / ROW_BYTES - CALLS_KEPT + 2
    for row = 1, #r.rows / ROW_BYTES do
      local packed = string.sub(r.rows, (row - 1) * ROW_BYTES + 1, row * ROW_BYTES)
      local owner = r.row_owners[string.byte(packed)]
      if row >= oldest or string.sub(owner, 1, 1) == REPLACED then
        row_owners[#row_owners + 1] = owner
        rows = rows .. string.char(#row_owners) .. string.sub(packed, 2)
      end
    end
    row_owners[#row_owners + 1] = call
    r.rows, r.row_owners = rows .. struct.pack(ROW, #row_owners, 0, 0, 0), row_owners
    return #row_owners
  end

  -- Begin to change what is kept under an id, and remember the call; return the record.
  function begin_call(r, id, call, attempts)
    if not r then
      r = begin_itself(id)
      r.states = 'X'
    end
    touch(r)
    r.due, r.attempts = now_us, struct.pack('<H', attempts)
    set(r, 1, 1, GONE, remember_call(r, call))
    r.notes = nil
    return r
  end
end

-- Write a result.
local function keep(r, id, call, ttl_ms, text, attempts)
  local was_gone = r ~= nil
  r = begin_call(r, id, call, attempts)
  results.keep(r, 1, 1, ttl_ms, text)
  -- Ends of items are noted where a state changes (place).  This one may be gone before and after.
  if was_gone and number('awaited') > 0 then results.note_ended(r, 1, 1) end
end

-- Every server must have what is reported, and its text with it; text is nil where nothing is kept.
local function tell_kept(r, text)
  if text and not r.notes then note(r, 1, text) end
  tell_as_is(r)
end

-- An id that belongs to an item keeps nothing, and nothing counts itself: only a tombstone of one that is alone may become a result.
local function is_item(id)
  local r = open(id)
  if r and (r.count ~= 0 or string.find(r.states, ALIVE)) then return r end
end

local VERBS = {}

-- Forget a result; return it, nil if there was none.  The call is remembered also then: its first try may be executed
-- late, when another call has stored one.
local function forget(id, call)
  local r, kept = kept_of(id)
  if is_repeated(r, call) then
    tell_kept(r, kept)
    return nil
  end
  drop_own(begin_call(r, id, call, 0), 1, 1)
  return kept
end

-- Forget the parts that a result names which is replaced or forgotten (zkrq/client/stored.py): a byte, their number, and what
-- their ids have in common.  Return how many more may be forgotten in this call; others go when their time is over.
local function forget_parts(text, call, room)
  if not text or string.byte(text) ~= 1 or #text ~= 21 then return room end
  local count, token = struct.unpack('<I4c16', text, 2)
  local name = string.gsub(token, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  room = room - count
  for at = 0, room >= 0 and count - 1 or -1 do forget('part-' .. name .. '-' .. at, call) end
  return room
end

function VERBS.set(id, call, text, ttl_ms, rank)
  local r, kept, attempts = kept_of(id)
  local repeated = is_repeated(r, call)
  if repeated or kept and rank < attempts % COUNTED then
    tell_kept(r, kept)
    return repeated and 1 or 0
  end
  if kept ~= text then forget_parts(kept, call, PARTS_MAX) end -- a first try may come later than another call's count
  keep(r, id, call, ttl_ms, text, (attempts >= COUNTED and COUNTED or 0) + rank)
  return 1
end

function VERBS.count(id, call, counter, ttl_ms)
  local r, kept, attempts = kept_of(id)
  local c, counted = kept_of(counter)
  local value = tonumber(counted or '') or 0
  if attempts < COUNTED and not is_repeated(r, call) then
    value = value + 1
    keep(r, id, call, ttl_ms, kept or '', attempts + COUNTED)
    keep(c, counter, call, ttl_ms, string.format('%.0f', value), 0)
  else
    tell_kept(r, kept)
    if c then tell_kept(c, counted) end
  end
  return value
end

local function operation(queue, put_window_ms, trim)
  local counted, room = {}, PARTS_MAX
  for i = first, last, 4 do
    local verb, ttl_ms, rank = string.match(ARGV[i + 2], '^(%a+) ?(%d*) ?(%d*)$')
    local id, call, text = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    local item, number = is_item(id) or verb == 'count' and is_item(text), 0
    if item then
      number = -1
      tell_as_is(item)
    elseif verb == 'forget' then
      room = forget_parts(forget(id, call), call, room)
    elseif id ~= text then
      number = VERBS[verb](id, call, text, tonumber(ttl_ms), tonumber(rank))
    end
    counted[#counted + 1] = number
  end
  list_queue(queue)
  commit()
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', counted, decisions()}
end
