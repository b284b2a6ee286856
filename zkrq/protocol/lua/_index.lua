-- purpose: keep the index of an item's state: ready or scheduled, claimed, dead, or the list of tombstones.
-- Scores are this server's clock in microseconds; ready and scheduled are ordered by priority (0 to 9, higher first),
-- then due time.
-- holdings lists the claims of each request, ordered by name: token, a zero byte, id.
-- Writes are gathered, then made in an order of which every prefix is safe, because Redis does not undo a script that
-- fails half-way: an index may name an item that has left (readers of an index check the record), but no item is ever
-- without its index.
local PRIORITIES = 10
local PRIORITY_STEP = 562949953421312 -- 2^49 microseconds, 17 years
local FIRST_MOMENT = 1700000000000000 -- so that ten steps fit into the 53 bits of a score
local LAST_MOMENT = FIRST_MOMENT + PRIORITY_STEP - 1

local function rank(priority, due_us)
  return (PRIORITIES - 1 - priority) * PRIORITY_STEP + (due_us - FIRST_MOMENT)
end

local function due_of(priority, score)
  return score - (PRIORITIES - 1 - priority) * PRIORITY_STEP + FIRST_MOMENT
end

-- Call visit(priority, score) with the first score of each priority that ready or scheduled has, highest priority first.
local function each_priority(index, visit)
  local from, step = '-inf', nil
  repeat
    local score = tonumber(redis.call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
    if not score then return end
    step = math.max(0, math.floor(score / PRIORITY_STEP)) -- below 0: due before the first moment
    visit(PRIORITIES - 1 - step, score)
    from = (step + 1) * PRIORITY_STEP
  until step == PRIORITIES - 1
end

-- Format a moment as a score once: Redis would format a number again for every item that has it.
local function score_of(at_us)
  return string.format('%.0f', at_us)
end

local HOMES = {Q = {ready, scheduled}, C = {claimed}, D = {dead}, X = {}, P = {}}
local entering, leaving, new_records, new_payloads, new_tombstones
local removals = 0 -- committed by this call

local function list()
  return {n = 0}
end

local function reset()
  entering = {[ready] = list(), [scheduled] = list(), [claimed] = list(), [holdings] = list(), [dead] = list()}
  leaving = {[ready] = list(), [scheduled] = list(), [claimed] = list(), [holdings] = list(), [dead] = list()}
  new_records, new_payloads, new_tombstones = list(), list(), list()
end
reset()

local function append(to, a)
  local n = to.n + 1
  to[n], to.n = a, n
end

local function append_pair(to, a, b)
  local n = to.n
  to[n + 1], to[n + 2], to.n = a, b, n + 2
end

-- Make the entry of a tombstone: when it was buried here, when its item was pushed (packed as in its record), version,
-- id. An item that was unknown here, or already gone, counts as pushed at the last moment before.
local BURIED = struct.pack('<d', now_ms)
local function tombstone_of(pushed_at, version, id)
  return BURIED .. (pushed_at == '\0\0\0\0\0\0\0\0' and BURIED or pushed_at) .. version .. id
end

local function enter_queue(id, priority, due_us)
  if due_us <= now_us then
    append_pair(entering[ready], rank(priority, due_us), id)
    return ready
  end
  append_pair(entering[scheduled], rank(priority, math.min(due_us, LAST_MOMENT)), id)
  return scheduled
end

-- Return the beginning of a claim's entry in holdings; the id follows.
local function holding_of(token)
  return token .. '\0'
end

-- Enter claims of one request that end together, the last id first: ids grow, and Redis searches a short sorted set
-- from its beginning for the place of each.
local function enter_claimed(ids, deadline, token)
  if ids.n == 0 then return end
  local claims, held_claims, n, holding = entering[claimed], entering[holdings], entering[claimed].n, holding_of(token)
  for i = ids.n, 1, -1 do
    claims[n + 1], claims[n + 2] = deadline, ids[i]
    held_claims[n + 1], held_claims[n + 2] = 0, holding .. ids[i]
    n = n + 2
  end
  claims.n, held_claims.n = n, n
end

-- A key names all items that have it: one, as far as one server decides; several after two servers decided separately.
local function keep_key(key, id, lives)
  local named, ids = redis.call('HGET', keys, key) or '', {lives and id or nil}
  for other in string.gmatch(named, '[^\1]+') do
    if other ~= id then ids[#ids + 1] = other end
  end
  table.sort(ids)
  local naming = table.concat(ids, '\1')
  if naming == named then return end
  if naming == '' then redis.call('HDEL', keys, key) else redis.call('HSET', keys, key, naming) end
end

-- Maintain what only marked items have: a key, which names the item while it is queued or claimed, and a moment at
-- which it expires (expires_us nil: unchanged, or from now).  A negative score: it expired while it was claimed.
local function look_after(id, marks, state, packed, expires_us)
  local whole = state == 'X' and redis.call('HGET', records, id) or packed
  if not whole then return end -- unknown here, and never to live here
  local key, _, ttl_ms = read_tail(string.sub(whole, TOKEN_AT + 1 + string.byte(whole, TOKEN_AT)))
  local lives = state == 'Q' or state == 'C'
  if marks >= KEYED then keep_key(key, id, lives) end
  if marks % 2 == EXPIRES and ttl_ms then
    if not lives then
      redis.call('ZREM', expiring, id)
    elseif expires_us then
      redis.call('ZADD', expiring, expires_us, id)
    elseif not redis.call('ZSCORE', expiring, id) then
      redis.call('ZADD', expiring, now_us + ttl_ms * 1000, id)
    end
  end
end

-- Tell whether the item has outlived its time to live; only for items that are not claimed.
local function has_expired(id, r)
  local expires_us = r.marks % 2 == EXPIRES and tonumber(redis.call('ZSCORE', expiring, id) or nil)
  return expires_us and expires_us <= now_us
end

-- Read an argument left_ms, in microseconds: until due time or deadline, and, if a space follows, until the item
-- expires.
local function read_left(left_ms)
  local ms, expires_ms = tonumber(left_ms), nil
  if not ms then ms, expires_ms = string.match(left_ms, '^(%S+) (%S+)$') end
  return math.floor(ms * 1000 + 0.5), expires_ms and math.floor(expires_ms * 1000 + 0.5)
end

-- Write the record r of an item that was in old_state (nil: unknown here), and claimed under old_token.
-- at_us: due time, deadline, or time of death, by state.  expires_us: when it expires, nil: see look_after.
local function place(id, old_state, old_token, r, marks, at_us, packed, expires_us)
  local state, priority, home = r.state, r.priority, nil
  if marks > 0 then look_after(id, marks, state, packed, expires_us) end
  if state == 'Q' then
    home = enter_queue(id, priority, at_us)
  elseif state == 'C' then
    append_pair(entering[claimed], at_us, id)
    append_pair(entering[holdings], 0, holding_of(r.token) .. id)
    home = claimed
  elseif state == 'D' then
    append_pair(entering[dead], at_us, id)
    home = dead
  elseif state == 'X' then
    -- The queue's own record is never dropped, because its versions would start again. The payload stays until every
    -- server knows of the removal (cut.lua), or until the tombstone is dropped.
    if id ~= PAUSE then
      local version = struct.pack('<I4I4', r.epoch, r.n)
      append(new_tombstones, tombstone_of(struct.pack('<d', r.pushed_at), version, id))
    end
  end
  if old_state == 'Q' then
    if home ~= ready then append(leaving[ready], id) end
    if home ~= scheduled then append(leaving[scheduled], id) end
  elseif old_state == 'C' then
    if home ~= claimed then append(leaving[claimed], id) end
    if home ~= claimed or r.token ~= old_token then append(leaving[holdings], holding_of(old_token) .. id) end
  elseif old_state == 'D' and home ~= dead then
    append(leaving[dead], id)
  end
  append_pair(new_records, id, packed)
end

-- Return the item's place in its index, as a moment of this clock.
local function stands_at_us(id, r)
  for _, index in ipairs(HOMES[r.state]) do
    local score = tonumber(redis.call('ZSCORE', index, id) or nil)
    if score then return r.state == 'Q' and due_of(r.priority, score) or score end
  end
  return now_us
end

-- A claim may have arrived before its item's own push: then the payload is still missing, and the item may have waited
-- for it. Return how many items this makes ready.
local function complete(id, r, payload)
  if not HAS_PAYLOAD[r.state] or redis.call('HSETNX', payloads, id, payload) == 0 or r.state ~= 'Q' then return 0 end
  redis.call('ZADD', ready, rank(r.priority, now_us), id)
  redis.call('ZREM', scheduled, id)
  return 1
end

local function write(command, key, values)
  if values.n > 0 then redis.call(command, key, unpack(values, 1, values.n)) end
end

local function commit()
  write('HSET', payloads, new_payloads)
  for index, values in pairs(entering) do write('ZADD', index, values) end
  write('HSET', records, new_records)
  for index, values in pairs(leaving) do write('ZREM', index, values) end
  write('RPUSH', tombstones, new_tombstones)
  removals = removals + new_tombstones.n
  reset()
end
