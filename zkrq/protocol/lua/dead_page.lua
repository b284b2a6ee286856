#!lua flags=allow-oom
-- purpose: read one page of the dead letters, the oldest first, without changing anything.
-- cursor: 0 to begin, then the result of the last call, until that is 0: score and entry of the last letter that was
-- read.  If that letter has left, letters that died at the same moment may be read again.
-- KEYS: server records payloads dead notes
-- ARGV: epoch generation cursor count
-- reply: OK cursor [id position; of each letter, in order: its bundle and its place there] [id record notes since payload; of each bundle, the payload is false where there is none] [id; of each beyond the limit of bytes]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor, count)
  local LETTERS_MAX = 500 -- read by one call
  count = math.min(tonumber(count), LETTERS_MAX)

  local score, passed = string.match(cursor, '^(%S+) (.*)$')
  local offset = 0
  if score then
    if redis.call('ZSCORE', dead, passed) == score then
      offset = redis.call('ZRANK', dead, passed) + 1
    else
      offset = redis.call('ZCOUNT', dead, '-inf', '(' .. score)
    end
  end
  local listed = count > 0 and redis.call('ZRANGE', dead, offset, offset + count - 1, 'WITHSCORES') or {}

  local places, ids, named = {}, {}, {}
  for i = 1, #listed, 2 do
    local bundle, position = read_entry(listed[i])
    places[i], places[i + 1] = bundle, position
    if not named[bundle] then
      named[bundle], ids[#ids + 1] = true, bundle
    end
  end
  local is_last = #listed < 2 * count or count == 0
  local next_cursor = is_last and '0' or listed[#listed] .. ' ' .. listed[#listed - 1]
  local found, left_out = copies_of(known_of(ids), now_us)
  return {'OK', next_cursor, places, found, left_out}
end
