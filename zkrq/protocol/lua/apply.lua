#!lua flags=allow-oom
-- purpose: install decided records, each only if its version is greater than the one held.
-- Why the greater version wins.  Records of one item reach a server in any order, late, and more than once, from
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
-- left_ms: until due time or deadline, negative for the past, counted from clock, a moment of this server's clock, 0:
-- from now; after a space, until it expires.
-- record: empty for the same as the one before it.
-- payloads_given: 0 none, 1 one of each, 2 one of each that is not empty.
-- fenced: an owner to refuse from now on, or empty.
-- A payload is stored if the item is alive and has none yet.  If the item is gone here but its payload is not, a live
-- record of a greater version keeps that payload, because no other server may have it; only a later life of the id
-- drops it.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring owners fenced_owners lead waiting
-- ARGV: epoch generation queue put_window_ms trim fenced payloads_given clock / id record left_ms payload
-- reply: OK [position; of each that holds a greater version] [position; of each that lacks its payload]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake owners tombstones sizes
local ids, superseded, bare = {}, {}, {}
local stride = payloads_given == '0' and 3 or 4
for i = first, #ARGV, stride do ids[#ids + 1] = ARGV[i] end
if fenced ~= '' then fence_owner(fenced) end
if #ids == 0 then return {'OK', superseded, bare} end
local known = redis.call('HMGET', records, unpack(ids))
local readied = 0
local applied = {} -- an id may come twice in one call: its record after the first time
local from_us = clock ~= '0' and tonumber(clock)

-- Tell whether a record over a tombstone belongs to another item, which was given the same id.
local function is_later_life(packed, tombstone)
  local length = string.byte(tombstone, TOKEN_AT)
  if string.sub(tombstone, TOKEN_AT + 1, TOKEN_AT + length) == REFUSED then return true end
  local pushed_at, buried_us = struct.unpack('<d', packed, PUSHED_AT), struct.unpack('<d', tombstone, DUE_AT)
  return pushed_at - put_window_ms > buried_us / 1000
end

-- Return whether the payload was missing and is now stored.
local function keep_payload(position, id, state, payload)
  if not HAS_PAYLOAD[state] then return end
  if payloads_given == '1' or payloads_given == '2' and payload ~= '' then
    note_size(payload)
    return redis.call('HSETNX', payloads, id, payload) == 1
  elseif redis.call('HEXISTS', payloads, id) == 0 then
    bare[#bare + 1] = position
  end
end

local claims, last_left_ms, last_deadline, last_token = list(), nil, nil, nil

local function enter_claims()
  enter_claimed(claims, last_deadline, last_token)
  claims = list()
end

local function commit_all()
  enter_claims()
  commit()
end

-- A claim may have arrived before the copy that says how much of its item's life was left.  Then the copy is as old as
-- what is held, or one decision older.  Within two decisions no item has died and been given a new life.
local COPY_US = 1000000 -- copies differ by less than that anyway
local function shorten_life(id, left_ms)
  local _, expires_us = read_left(left_ms)
  local known_us = expires_us and tonumber(redis.call('ZSCORE', expiring, id) or nil)
  local at_us = known_us and (from_us or now_us) + expires_us
  if at_us and at_us < known_us - COPY_US then redis.call('ZADD', expiring, at_us, id) end
end

-- Apply any record over any other.
local function apply(position, id, packed, left_ms, payload, held_packed)
  local mine, held = read_head(packed), held_packed and read_head(held_packed)
  if not held or newer(mine, held) then
    local from = from_us or now_us - #ids + position
    local left_us, expires_us = read_left(left_ms)
    if applied[id] then commit_all() end
    if held and held.state == 'X' and HAS_PAYLOAD[mine.state] and is_later_life(packed, held_packed) then
      redis.call('HDEL', payloads, id)
    end
    local marks = mine.state == 'X' and held and held.marks or mine.marks -- a tombstone has none
    if mine.state == 'X' then mine.pushed_at = held and held.pushed_at or 0 end
    place(id, held and held.state, held and held.token, mine, marks, from + left_us, packed, expires_us and from + expires_us)
    applied[id] = packed
    if mine.state == 'C' then note_owner(mine.token) end
    if mine.state == 'Q' then readied = readied + 1 end
    held = nil
  else
    if mine.marks % 2 == EXPIRES and held.n <= mine.n + 1 then shorten_life(id, left_ms) end
    if newer(held, mine) or held.token ~= mine.token then
      superseded[#superseded + 1] = position
      mine = held
    end
  end
  local completed = keep_payload(position, id, mine.state, payload)
  -- It may have been put back because it had no payload (claim.lua).
  if completed and held and held.state == 'Q' and read_left(left_ms) <= 0 then
    redis.call('ZADD', ready, rank(held.priority, now_us), id)
    redis.call('ZREM', scheduled, id)
    readied = readied + 1
  end
end

-- The usual transitions of an item without marks: from queued, as its push left it, to claimed, and from claimed to
-- gone.  Items of a batch share most of these writes.
local any_scheduled = redis.call('EXISTS', scheduled) == 1

local function claim(id, packed, left_ms)
  local token = string.sub(packed, TOKEN_AT + 1, TOKEN_AT + string.byte(packed, TOKEN_AT))
  if left_ms ~= last_left_ms or token ~= last_token then
    enter_claims()
    last_left_ms, last_deadline = left_ms, score_of((from_us or now_us) + read_left(left_ms))
  end
  if token ~= last_token then
    last_token = token
    note_owner(token)
  end
  append(claims, id)
  append_pair(new_records, id, packed)
  append(leaving[ready], id)
  if any_scheduled then append(leaving[scheduled], id) end
end

local function remove(id, packed, held)
  local version = string.sub(packed, VERSION_AT, STATE_AT - 1)
  append(new_tombstones, tombstone_of(string.sub(held, PUSHED_AT, DUE_AT - 1), version, id))
  append_pair(new_records, id, packed)
  append(leaving[claimed], id)
  append(leaving[holdings], holding_of(string.sub(held, TOKEN_AT + 1, TOKEN_AT + string.byte(held, TOKEN_AT))) .. id)
end

local FIRST_VERSION = struct.pack('<I4I4', 0, 1)
local at, last_packed = first, nil
for position, id in ipairs(ids) do
  local packed, left_ms, held = ARGV[at + 1], ARGV[at + 2], known[position]
  if packed == '' then packed = last_packed end
  last_packed = packed
  local is, was = string.byte(packed, STATE_AT), held and string.byte(held, STATE_AT)
  local plain = held and payloads_given == '0' and not applied[id] and string.byte(held, PRIORITY_AT) < MARK
  if plain and is == CLAIMED and was == QUEUED and string.sub(held, VERSION_AT, STATE_AT - 1) == FIRST_VERSION
    and string.sub(packed, VERSION_AT, STATE_AT - 1) ~= FIRST_VERSION then
    applied[id] = packed
    claim(id, packed, left_ms)
  elseif plain and is == GONE and was == CLAIMED and is_newer(packed, held) then
    applied[id] = packed
    remove(id, packed, held)
  else
    apply(position, id, packed, left_ms, ARGV[at + 3], applied[id] or held)
  end
  at = at + stride
end
redis.call('SADD', queues, queue)
commit_all()
wake(readied)
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
return {'OK', superseded, bare}
