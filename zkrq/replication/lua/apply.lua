#!lua flags=allow-oom
-- purpose: install decided records, each only where its version is greater than the one held.
-- Idempotent, in any order.  left_ms: until due time or deadline, negative for what is past;
-- counted from a moment of this server's clock, 0: from now.
-- A payload is kept wherever the item lives and has none yet.
-- fenced: an owner whose claims these were and who is refused from now on, or empty.
-- KEYS: server queues records payloads ready scheduled claimed dead tombstones owners fenced_owners lead waiting
-- ARGV: epoch generation queue put_window_ms trim fenced payloads_given clock / id record left_ms payload
-- reply: OK [position of each that holds a greater version] [position of each that lacks its payload]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake owners tombstones
local ids, superseded, bare = {}, {}, {}
for i = first, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
if fenced ~= '' then fence_owner(fenced) end
if #ids == 0 then return {'OK', superseded, bare} end
local known = redis.call('HMGET', records, unpack(ids))
local readied, removed = 0, 0
local now_is = {} -- an id may come twice in one call
for position, id in ipairs(ids) do
  local at = first + (position - 1) * 4
  local packed, held = ARGV[at + 1], now_is[id] or known[position] and read_head(known[position])
  local mine = read_head(packed)
  if not held or newer(mine, held) then
    local from_us = clock == '0' and now_us - #ids + position or clock
    local at_us = from_us + math.floor(ARGV[at + 2] * 1000 + 0.5)
    if now_is[id] then commit() end
    place(id, held and held.state, mine.state, mine.priority, at_us, packed, mine)
    now_is[id] = mine
    if mine.state == 'C' then note_owner(mine.token) end
    if mine.state == 'Q' then readied = readied + 1 end
    if mine.state == 'X' then removed = removed + 1 end
  elseif newer(held, mine) or held.token ~= mine.token then
    superseded[#superseded + 1] = position
    mine = held
  end
  if mine.state ~= 'X' then
    if payloads_given == '1' then
      redis.call('HSETNX', payloads, id, ARGV[at + 3])
    elseif redis.call('HEXISTS', payloads, id) == 0 then
      bare[#bare + 1] = position
    end
  end
end
redis.call('SADD', queues, queue)
commit()
wake(readied)
if trim == '1' and removed > 0 then trim_tombstones(put_window_ms, 2 * removed) end
return {'OK', superseded, bare}
