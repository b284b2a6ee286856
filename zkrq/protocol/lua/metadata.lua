#!lua flags=allow-oom
-- purpose: read what a server knows of a queue besides its items: their number (a tombstone counts as one), the moment
-- before which no put is accepted, and its owners: the number of their last claim request, and how long ago they were
-- fenced; which claims have begun lately, if the queue has a rate, and its limits (_limits.lua).
-- clock: this server's clock, from which page.lua is to count.
-- KEYS: server owners fenced_owners tombstones lead
-- cursor: 0 to begin, then the result of the last call, until that is 0: all owners.
-- ARGV: epoch generation cursor
-- reply: OK cursor items clock floor_ms begun limits [owner seq fenced_ago_ms; of each, -1 for one that is not fenced]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(cursor)
  local PAGE = 500 -- owners reported in one call

  local flat, next_cursor = {}, nil
  local function tell(owner, seq, fenced_ms)
    local at = #flat
    flat[at + 1], flat[at + 2], flat[at + 3] = owner, seq or 0, fenced_ms and math.max(0, now_ms - fenced_ms) or -1
  end

  -- First the owners that claim, then the fenced ones: a cursor among these begins with f.
  local among_fenced = string.match(cursor, '^f(%d+)$')
  if among_fenced then
    local page = redis.call('ZSCAN', fenced_owners, among_fenced, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do tell(page[2][i], redis.call('HGET', owners, page[2][i]), page[2][i + 1]) end
    next_cursor = page[1] == '0' and '0' or 'f' .. page[1]
  else
    local page = redis.call('HSCAN', owners, cursor, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do tell(page[2][i], page[2][i + 1], redis.call('ZSCORE', fenced_owners, page[2][i])) end
    next_cursor = page[1] == '0' and 'f0' or page[1]
  end
  local items = redis.call('LLEN', tombstones) + number('queued') + number('claimed') + number('dead')
  return {'OK', next_cursor, items, now_us, numbers.floor_ms or 0, limits.pack_begun(), numbers.limits or '', flat}
end
