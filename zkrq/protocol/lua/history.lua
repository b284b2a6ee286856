#!lua flags=allow-oom
-- purpose: read which items have ended last, the latest first (_endings.lua).  As peek.lua, it tells what this server knows.
-- passed: how many to pass over.
-- took_us: from the beginning of the last claim until the end, -1: no consumer ended it.  owner: that consumer, otherwise empty.
-- state: A done, D dead letter (text is the reason), X cancelled, E its time to live was over.
-- KEYS: server records recent notes lead
-- ARGV: epoch generation passed count
-- reply: OK kept [id state age_us took_us owner attempts group key text]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(passed, count)
  local SEEN_MAX = 500 -- items in one call
  count = math.min(tonumber(count), SEEN_MAX)
  local flat, n = {}, 0

  local function tell(bundle, position, packed)
    local r = open(bundle, packed)
    local has_ended, moment, owner, seq
    if r then has_ended, moment, owner, seq = endings.end_of(r, position) end
    if not has_ended then return end
    local state, by_consumer = 'A', owner and seq > 0
    if string.byte(r.states, position) == DEAD then
      state = 'D'
    elseif not by_consumer then
      state = owner and 'X' or 'E'
    end
    local text = state == 'D' and redis.call('HGET', notes, entry_of(r, position)) or ''
    local row = string.byte(r.named, position) - NONE
    local took_us = by_consumer and math.max(0, moment - began_at(r, row)) or -1 -- this clock may have been set back
    flat[n + 1], flat[n + 2], flat[n + 3] = id_of(bundle, r, position), state, string.format('%.0f', now_us - moment - r.shift)
    flat[n + 4], flat[n + 5] = string.format('%.0f', took_us), by_consumer and owner or ''
    flat[n + 6], flat[n + 7], flat[n + 8] = attempts_at(r, position), r.group or '', has_tail(r) and tails.read(r.tail) or ''
    flat[n + 9], n = text, n + 9
  end

  local entries, ids, positions = redis.call('ZRANGE', recent, passed, passed + count - 1, 'REV'), {}, {}
  for i, entry in ipairs(entries) do ids[i], positions[i] = read_entry(entry) end
  for i, packed in ipairs(#ids > 0 and redis.call('HMGET', records, unpack(ids)) or {}) do
    tell(ids[i], positions[i], packed)
  end
  return {'OK', endings.size(), flat}
end
