#!lua
-- purpose: decide pushes that only the primary can decide: of an item with a key, which is pushed only while no other
-- item with that key is queued or claimed; into a queue that has a limit; and of an item whose id some server knows to
-- be gone (put.lua).  A known id is left unchanged.  A tombstone does not count if it has expired, or only says that a
-- push was refused: the item begins a new life, above every tombstone of the former one.
-- record: its n is at least that of every tombstone of this id that a server has named.
-- max_size: how many items may be queued or claimed, 0: any number.
-- again: 1 when another primary may have decided the same push before; what is refused now is removed there.
-- delay_ms: until due; after a space, until it expires.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- ARGV: epoch generation again queue put_window_ms max_size / id record delay_ms payload
-- reply: OK [outcome; by position: + there, = and the id of the item that has the key, D done: pushed before and gone, F full, L late] [id record left_ms; of all that is there]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake reply taken sizes
local floor_ms = math.max(now_ms - put_window_ms, tonumber(redis.call('HGET', lead, 'floor_ms') or 0))
local queued = redis.call('ZCARD', ready) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', claimed)
local most, outcomes, outcome_of, readied = tonumber(max_size), {}, {}, 0

local function refuse(id, r, why)
  if again == '1' then decide(id, r, 'X', REFUSED, now_us) end
  return why
end

local function known_already(id, packed, r, above_n, payload)
  readied = readied + complete(id, r, payload)
  if above_n > r.n then -- a tombstone of a former life would win over it on another server
    r.n = above_n
    decide(id, r, r.state, r.token, stands_at_us(id, r))
  else
    tell_as_is(id, packed, r)
  end
  return '+'
end

local function push(id, packed, left_ms, payload)
  local known, r = redis.call('HGET', records, id), read_record(packed)
  note_size(payload)
  local before = known and read_record(known)
  if before and before.state ~= 'X' then return known_already(id, known, before, r.n, payload) end
  if before and before.token ~= REFUSED and not is_expired(known, now_us, put_window_ms) then
    tell_as_is(id, known, before)
    return 'D'
  end
  if before then r.n = math.max(r.n, before.n) end
  if r.pushed_at < floor_ms or r.pushed_at > now_ms + put_window_ms then return refuse(id, r, 'L') end
  local taken = r.marks >= KEYED and is_taken(read_tail(r.tail))
  if taken then
    local held = not position_of[taken] and redis.call('HGET', records, taken)
    if held then tell_as_is(taken, held, read_record(held)) end
    return refuse(id, r, '=' .. taken)
  end
  if most > 0 and queued >= most then return refuse(id, r, 'F') end
  local delay_us, expires_us = read_left(left_ms)
  append_pair(new_payloads, id, payload)
  decide(id, r, 'Q', '', now_us + delay_us, expires_us and now_us + expires_us)
  queued, readied = queued + 1, readied + 1
  return '+'
end

for i = first, #ARGV, 4 do
  local id = ARGV[i]
  outcome_of[id] = outcome_of[id] or push(id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  outcomes[#outcomes + 1] = outcome_of[id]
end
if decided.n > 0 then redis.call('SADD', queues, queue) end
commit()
wake(readied)
return {'OK', outcomes, decided}
