#!lua flags=allow-oom
-- purpose: decide claims: requeue expired ones, promote due items, then hand up to count ready items to the owner.
-- count: 0 passes on a wake-up that the process cannot use.
-- seq: number of this claim request, growing by owner and queue; repeated, it is given the same items again.
-- waiter: channel to wake when something becomes ready, if fewer than count items were; empty: none.
-- max_attempts: an item that was delivered this many times, and never settled, is a dead letter; 0: no limit.
-- expired: the state of an item that has outlived its time to live: X, or D for a dead letter.
-- dead_max, dead_age_ms: how many dead letters are kept and for how long, 0: no limit.
-- While the queue is paused nothing is handed out.  If payloads are large, their bytes bound the reply (BYTES_MAX).
-- next_ms: time until an item becomes ready by itself; 0: ask again immediately; -1: none will.
-- clock: what this server's clock should say now, in microseconds, by the client's clock since its last claim request
-- here; 0: unknown.  The reply carries what it says.  known_ms: how long the client has known this clock.
-- KEYS: server queues records payloads ready scheduled claimed holdings dead tombstones keys expiring owners fenced_owners lead waiting
-- ARGV: epoch generation clock known_ms put_window_ms trim queue owner seq count lease_ms waiter max_attempts expired dead_max dead_age_ms
-- reply: OK next_ms dropped_letters [payload; of each, false for what is not handed out] clock [id record left_ms; of everything decided here]
-- reply: FENCED
-- reply: OUTDATED
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake owners lease tombstones reply letters
local CLAIM_MAX = 500 -- items handed out in one call
local HOUSEKEEPING_MAX = 100 -- expired claims, and due items, processed in one call
local WAITER_MEMORY_MS = 60000 -- a waiter that has not asked again for this long is forgotten

local token = owner .. '/' .. seq
seq, count, lease_ms = tonumber(seq), math.min(tonumber(count), CLAIM_MAX), tonumber(lease_ms)
local most = tonumber(max_attempts)
local last_seq = tonumber(redis.call('HGET', owners, owner) or 0)
if is_fenced(owner) then return {'FENCED'} end
if seq < last_seq then return {'OUTDATED'} end
local since_us, has_large = leading_since_us(tonumber(clock))
local handed, handed_count = {}, 0 -- by position among what was decided; false between

-- Visit each item of a page of an index; those not in this state (nil: any) are removed from the index.
local function each_in(index, state, ids, visit)
  if #ids == 0 then return end
  local held = redis.call('HMGET', records, unpack(ids))
  for i, id in ipairs(ids) do
    local r = held[i] and read_record(held[i])
    if r and (r.state == state or not state) then visit(id, r) else redis.call('ZREM', index, id) end
  end
end

local function expire(id, r)
  with_note(r, 'expired')
  decide(id, r, expired, '', now_us)
end

-- The clock may have jumped after a claim was made and before this client came to know the clock, so that neither it nor
-- the server has noticed.  Until the others have looked, such a claim expires as much later as that jump can be long.
local held_back = {n = 0, until_us = math.huge}

local function requeue_expired()
  local known_us, silence_us = tonumber(known_ms) * 1000, SILENCE_MS * 1000
  local function is_held_back(id, r)
    if known_us >= silence_us then return false end
    local deadline_us = tonumber(redis.call('ZSCORE', claimed, id))
    local expires_us = deadline_us + silence_us
    if expires_us <= now_us or deadline_us - r.lease * 1000 >= now_us - known_us then return false end
    held_back.n, held_back.until_us = held_back.n + 1, math.min(held_back.until_us, expires_us)
    return true
  end
  local expired = redis.call('ZRANGEBYSCORE', claimed, '-inf', now_us, 'LIMIT', 0, HOUSEKEEPING_MAX)
  each_in(claimed, 'C', expired, function(id, r)
    local full_lease_us = since_us + r.lease * 1000
    if full_lease_us > now_us then
      redis.call('ZADD', claimed, full_lease_us, id)
    elseif not is_held_back(id, r) then
      decide(id, r, 'Q', '', math.min(r.due, now_us))
    end
  end)
  commit()
end

-- Highest priority first; otherwise the most urgent of many due items would come last.
local function promote_due()
  if redis.call('EXISTS', scheduled) == 0 then return end
  local room = HOUSEKEEPING_MAX
  each_priority(scheduled, function(priority, first_score)
    local last_score = rank(priority, now_us)
    if room == 0 or first_score > last_score then return end
    local due = redis.call('ZRANGEBYSCORE', scheduled, first_score, last_score, 'WITHSCORES', 'LIMIT', 0, room)
    local ids, score_of_id = {}, {}
    for i = 1, #due, 2 do ids[#ids + 1], score_of_id[due[i]] = due[i], due[i + 1] end
    room = room - #ids
    each_in(scheduled, 'Q', ids, function(id)
      append_pair(entering[ready], score_of_id[id], id)
      append(leaving[scheduled], id)
    end)
  end)
  commit()
end

-- Claimed items keep their place until they would be delivered again.
local function drop_expired()
  local over = redis.call('ZRANGEBYSCORE', expiring, 0, now_us, 'LIMIT', 0, HOUSEKEEPING_MAX)
  each_in(expiring, nil, over, function(id, r)
    if r.state == 'C' then return redis.call('ZADD', expiring, -now_us, id) end
    if r.state == 'Q' then return expire(id, r) end
    redis.call('ZREM', expiring, id)
  end)
  if #over > 0 then commit() end
end

local function hand_out(id, r, payload, score)
  if not payload then
    -- A claim arrived before the push itself, whose outcome is not known yet: wait as long as the push may still
    -- arrive.
    if r.state == 'C' then return end
    if r.pushed_at < now_ms - 2 * put_window_ms then return decide(id, r, 'X', '', now_us) end
    redis.call('ZADD', scheduled, rank(r.priority, now_us + put_window_ms * 1000), id)
    redis.call('ZREM', ready, id)
    return
  end
  if r.state == 'Q' and most > 0 and r.attempts >= most then
    with_note(r, 'delivered ' .. r.attempts .. ' times, and settled by none of those consumers')
    return decide(id, r, 'D', '', now_us)
  end
  if r.state == 'Q' and r.marks > 0 and has_expired(id, r) then return expire(id, r) end
  handed_count = handed_count + 1
  if r.state == 'C' and r.epoch == epoch then
    report(id, write_record(r), tonumber(redis.call('ZSCORE', claimed, id)))
    handed[position_of[id]] = payload
    return
  end
  if r.state == 'Q' then
    r.attempts = r.attempts + 1
    r.due = due_of(r.priority, tonumber(score))
  end
  r.lease = lease_ms
  decide(id, r, 'C', token, now_us + lease_ms * 1000)
  handed[position_of[id]] = payload
end

-- Do the same for the usual item: ready, without marks, with a payload; the part that all items share is packed once.
local plain = list()
local deadline = score_of(now_us + lease_ms * 1000)
local before, behind = struct.pack('<BI4', FORMAT, epoch), struct.pack('<I4B', lease_ms, #token) .. token

local function hand_out_plain(id, packed, payload, score)
  local n, _, priority, attempts = struct.unpack('<I4c1BI4', packed, N_AT)
  if most > 0 and attempts >= most then return hand_out(id, read_record(packed), payload, score) end
  local claim = before .. struct.pack('<I4c1BI4', n + 1, 'C', priority, attempts + 1)
    .. string.sub(packed, FAILURES_AT, DUE_AT - 1) .. struct.pack('<d', due_of(priority, tonumber(score))) .. behind
    .. string.sub(packed, TOKEN_AT + 1 + string.byte(packed, TOKEN_AT))
  append_pair(new_records, id, claim)
  append(leaving[ready], id)
  append(plain, id)
  local at = decided.n
  handed[at + 1], handed_count = payload, handed_count + 1
  decided[at + 1], decided[at + 2], decided[at + 3], decided.n = id, claim, lease_ms, at + 3
end

-- Return the ids whose payloads fit into one reply; the others stay ready.
local cut = false
local function within_bytes(ids)
  local fitting, bytes = {}, 0
  for i, id in ipairs(ids) do
    local size = redis.call('HSTRLEN', payloads, id)
    bytes = bytes + size
    cut = bytes > BYTES_MAX and bytes > size
    if cut then break end
    fitting[i] = id
  end
  return fitting
end

local function hand_out_ready()
  local page = redis.call('ZRANGE', ready, 0, count - 1, 'WITHSCORES')
  if #page == 0 then return end
  local ids = {}
  for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
  if has_large then ids = within_bytes(ids) end
  local held, carried = redis.call('HMGET', records, unpack(ids)), redis.call('HMGET', payloads, unpack(ids))
  for i, id in ipairs(ids) do
    local packed, payload = held[i], carried[i]
    if not packed or string.byte(packed, STATE_AT) ~= QUEUED then
      redis.call('ZREM', ready, id)
    elseif payload and string.byte(packed, PRIORITY_AT) < MARK and not position_of[id] then
      hand_out_plain(id, packed, payload, page[2 * i])
    else
      hand_out(id, read_record(packed), payload, page[2 * i])
    end
  end
  enter_claimed(plain, deadline, token)
end

-- Hand out the remaining claims that this request was given before.
local function hand_out_again()
  local holding = holding_of(token)
  local entries = redis.call('ZRANGEBYLEX', holdings, '[' .. holding, '(' .. token .. '\1', 'LIMIT', 0, CLAIM_MAX)
  if #entries == 0 then return end
  local ids = {}
  for i, entry in ipairs(entries) do ids[i] = string.sub(entry, #holding + 1) end
  for i, packed in ipairs(redis.call('HMGET', records, unpack(ids))) do
    local r = packed and read_record(packed)
    if r and r.state == 'C' and r.token == token then hand_out(ids[i], r, redis.call('HGET', payloads, ids[i])) end
  end
end

local paused = redis.call('HGET', records, PAUSE)
paused = paused and read_head(paused).state == 'P'

local dropped_letters, more_letters = 0, false

local function next_ms()
  if more_letters then return 0 end
  if paused then return -1 end
  if redis.call('ZCARD', ready) > 0 then return 0 end
  local deadline_us = tonumber(redis.call('ZRANGE', claimed, held_back.n, held_back.n, 'WITHSCORES')[2])
  local soonest_us = (deadline_us or held_back.n > 0) and math.min(deadline_us or math.huge, held_back.until_us)
  each_priority(scheduled, function(priority, score)
    local due_us = due_of(priority, score)
    if not soonest_us or due_us < soonest_us then soonest_us = due_us end
  end)
  return soonest_us and math.max(0, math.ceil((soonest_us - now_us) / 1000)) or -1
end

if seq == last_seq then
  hand_out_again()
else
  -- List even a queue that never has an item; otherwise its owners would be kept forever.
  if last_seq == 0 then redis.call('SADD', queues, queue) end
  redis.call('HSET', owners, owner, seq)
  requeue_expired()
  promote_due()
  drop_expired()
  if count > 0 and not paused then hand_out_ready() end
end
commit()
if seq > last_seq then dropped_letters, more_letters = drop_dead_letters() end
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
if waiter ~= '' and handed_count < count and not cut then
  forget_before(waiting, now_ms - WAITER_MEMORY_MS)
  redis.call('ZADD', waiting, now_ms, waiter)
end
-- Items that are left are for another process.  A request for no items passes on its own wake-up, too: the item behind
-- that may not be due yet, and then the next waiter learns when it is.
if count == 0 or (cut or handed_count == count) and redis.call('ZCARD', ready) > 0 then wake(1) end
local payloads_of = {}
for at = 1, decided.n, 3 do payloads_of[(at + 2) / 3] = handed[at] or false end
return {'OK', next_ms(), dropped_letters, payloads_of, now_us, decided}
