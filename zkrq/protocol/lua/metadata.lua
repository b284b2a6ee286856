#!lua flags=allow-oom
-- purpose: read what a server knows of a queue besides its items: their number (a tombstone counts as one), the moment
-- before which no put is accepted, and its owners: the number of their last claim request, and how long ago they were
-- fenced; and which claims have begun lately, if the queue or its groups have a rate (_limits.lua): first of the queue, then
-- of groups, each behind a zero byte, its name and another one; and its limits.
-- clock: this server's clock, from which page.lua is to count.
-- KEYS: server groups owners fenced_owners tombstones lead
-- cursor: 0 to begin, then the result of the last call, until that is 0: all owners.
-- ARGV: epoch generation cursor
-- reply: OK cursor items clock floor_ms begun limits [owner seq fenced_ago_ms; of each, -1 for one that is not fenced]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(cursor)
  local PAGE = 500 -- owners reported in one call

  local items = redis.call('LLEN', tombstones) + number('queued') + number('claimed') + number('dead')
  local flat, next_cursor, begun = {}, nil, {limits.pack_begun(numbers.begun)}
  local function tell(owner, seq, fenced_ms)
    local at = #flat
    flat[at + 1], flat[at + 2], flat[at + 3] = owner, seq and tonumber(seq) and seq or 0, fenced_ms and math.max(0, now_ms - fenced_ms) or -1
  end

  -- First the owners that claim, then the fenced ones, then the groups: a cursor among these begins with f, with g.
  local kind, at = string.match(cursor, '^([fg])(%d+)$')
  if kind == 'g' then
    local page = redis.call('HSCAN', groups, at, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do
      local packed = limits.pack_begun((select(7, places.read_state(page[2][i + 1]))))
      if packed ~= '' then begun[#begun + 1] = '\0' .. page[2][i] .. '\0' .. packed end
    end
    next_cursor = page[1] == '0' and '0' or 'g' .. page[1]
  elseif kind == 'f' then
    local page = redis.call('ZSCAN', fenced_owners, at, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do tell(page[2][i], redis.call('HGET', owners, page[2][i]), page[2][i + 1]) end
    local _, width = limits.of_groups()
    next_cursor = page[1] ~= '0' and 'f' .. page[1] or width and 'g0' or '0'
  else
    local page = redis.call('HSCAN', owners, cursor, 'COUNT', PAGE)
    for i = 1, #page[2], 2 do tell(page[2][i], page[2][i + 1], redis.call('ZSCORE', fenced_owners, page[2][i])) end
    next_cursor = page[1] == '0' and 'f0' or page[1]
  end
  return {'OK', next_cursor, items, now_us, number('floor_ms'), table.concat(begun), numbers.limits or '', flat}
end
