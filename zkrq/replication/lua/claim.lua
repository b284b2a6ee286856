#!lua flags=allow-oom
-- purpose: decide claims: requeue expired ones, promote due items, then hand up to count ready items to the owner.
-- seq: number of this claim request, growing by owner and queue; repeated, it is given the same items again.
-- waiter: channel to be told when something becomes ready, if fewer than count were there; empty: none.
-- max_attempts: an item that was delivered so often, and settled by none, is a dead letter; 0: no limit.
-- next_ms: how long nothing will become ready by itself; 0: ask again at once; -1: nothing is on its way.
-- KEYS: server records payloads ready scheduled claimed dead tombstones owners fenced_owners lead waiting
-- ARGV: epoch generation put_window_ms owner seq count lease_ms waiter max_attempts
-- reply: OK next_ms [id payload of each item handed out] [id record left_ms of everything decided here]
-- reply: FENCED
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake owners lease reply
local CLAIM_MAX = 1000 -- capped before the first write: unpack fails beyond some 4,000 results
local HOUSEKEEPING_MAX = 100 -- expired claims, and due items, dealt with in one call
local WAITER_MEMORY_MS = 60000 -- a waiter that has not asked again for so long is forgotten

local token = owner .. '/' .. seq
seq, count, lease_ms = tonumber(seq), math.min(tonumber(count), CLAIM_MAX), tonumber(lease_ms)
local most = tonumber(max_attempts)
local last_seq = tonumber(redis.call('HGET', owners, owner) or 0)
if is_fenced(owner) or seq < last_seq then return {'FENCED'} end
local since_us = leading_since_us()
local handed = list()

-- Both lists of one page of an index: ids with their records, those not in this state struck from the index.
local function each_in(index, state, ids, visit)
  if #ids == 0 then return end
  local held = redis.call('HMGET', records, unpack(ids))
  for i, id in ipairs(ids) do
    local r = held[i] and read_record(held[i])
    if r and r.state == state then visit(id, r) else redis.call('ZREM', index, id) end
  end
end

local function requeue_expired()
  local expired = redis.call('ZRANGEBYSCORE', claimed, '-inf', now_us, 'LIMIT', 0, HOUSEKEEPING_MAX)
  each_in(claimed, 'C', expired, function(id, r)
    local full_lease_us = since_us + r.lease * 1000
    if full_lease_us > now_us then
      redis.call('ZADD', claimed, full_lease_us, id)
    else
      decide(id, r, 'Q', '', math.min(r.due, now_us))
    end
  end)
  commit()
end

local function promote_due()
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now_us, 'LIMIT', 0, HOUSEKEEPING_MAX)
  each_in(scheduled, 'Q', due, function(id, r)
    redis.call('ZADD', ready, rank(r.priority, tonumber(redis.call('ZSCORE', scheduled, id))), id)
    redis.call('ZREM', scheduled, id)
  end)
end

local function hand_out(id, r, payload, score)
  if not payload then
    -- A claim came here before the push itself did, whose outcome nobody knows yet: wait for it as long as it may come.
    if r.state == 'C' then return end
    if r.pushed_at < now_ms - 2 * put_window_ms then return decide(id, r, 'X', '', now_us) end
    redis.call('ZADD', scheduled, now_us + put_window_ms * 1000, id)
    redis.call('ZREM', ready, id)
    return
  end
  if r.state == 'Q' and most > 0 and r.attempts >= most then
    with_note(r, 'delivered ' .. r.attempts .. ' times, and settled by none of those consumers')
    return decide(id, r, 'D', '', now_us)
  end
  append_pair(handed, id, payload)
  if r.state == 'C' and r.epoch == epoch then
    return report(id, write_record(r), tonumber(redis.call('ZSCORE', claimed, id)))
  end
  if r.state == 'Q' then
    r.attempts = r.attempts + 1
    r.due = due_of(r.priority, tonumber(score))
  end
  r.lease = lease_ms
  decide(id, r, 'C', token, now_us + lease_ms * 1000)
end

local function hand_out_ready()
  local page = redis.call('ZRANGE', ready, 0, count - 1, 'WITHSCORES')
  if #page == 0 then return end
  local ids, score_of = {}, {}
  for i = 1, #page, 2 do
    ids[#ids + 1] = page[i]
    score_of[page[i]] = page[i + 1]
  end
  local carried, payload_of = redis.call('HMGET', payloads, unpack(ids)), {}
  for i, id in ipairs(ids) do payload_of[id] = carried[i] end
  each_in(ready, 'Q', ids, function(id, r) hand_out(id, r, payload_of[id], score_of[id]) end)
end

local function hand_out_again()
  local cursor = '0'
  repeat
    local page = redis.call('ZSCAN', claimed, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local id = page[2][i]
      local packed = redis.call('HGET', records, id)
      local r = packed and read_record(packed)
      if r and r.state == 'C' and r.token == token and not position_of[id] then
        hand_out(id, r, redis.call('HGET', payloads, id))
      end
    end
  until cursor == '0'
end

local function next_ms()
  if redis.call('ZCARD', ready) > 0 then return 0 end
  local soonest_us
  for _, index in ipairs({scheduled, claimed}) do
    local first_us = tonumber(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
    if first_us and (not soonest_us or first_us < soonest_us) then soonest_us = first_us end
  end
  return soonest_us and math.max(0, math.ceil((soonest_us - now_us) / 1000)) or -1
end

if seq == last_seq then
  hand_out_again()
else
  redis.call('HSET', owners, owner, seq)
  requeue_expired()
  promote_due()
  if count > 0 then hand_out_ready() end
end
commit()
if waiter ~= '' and handed.n < 2 * count then
  redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now_ms - WAITER_MEMORY_MS)
  redis.call('ZADD', waiting, now_ms, waiter)
end
-- What is left over is somebody else's to take.
local left_over = handed.n == 2 * count and redis.call('ZCARD', ready) or 0
if left_over > 0 then wake(1) end
return {'OK', next_ms(), handed, decided}
