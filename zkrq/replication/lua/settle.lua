#!lua flags=allow-oom
-- purpose: decide what becomes of claimed items.  Verbs: ack (gone), nack (queued again after ms, one failure more),
-- release (queued again where it stood; ms 1: it was never handed to a handler, so the delivery does not count),
-- bury (dead letter, text is the reason), extend (the deadline moves to ms from now).
-- A claim is known by its token, and by a version no older than the one named.  A verb repeated with the same token
-- is answered as done, and decided again under the present epoch.
-- KEYS: server records payloads ready scheduled claimed dead tombstones lead waiting
-- ARGV: epoch generation put_window_ms trim / id version_epoch version_n token verb ms text
-- reply: OK [1 done or 0 lost, by position] [id record left_ms of everything decided here, and of what a lost one is now]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake lease tombstones reply
leading_since_us()
local REASON_MAX = 1000 -- bytes kept of a reason

local VERBS = {
  ack = {state = 'X', at_us = function() return now_us end},
  nack = {state = 'Q', at_us = function(r, ms)
    r.failures = r.failures + 1
    return now_us + ms * 1000
  end},
  release = {state = 'Q', at_us = function(r, ms)
    r.attempts = math.max(0, r.attempts - ms)
    return math.min(r.due, now_us)
  end},
  bury = {state = 'D', at_us = function() return now_us end},
  extend = {state = 'C', at_us = function(r, ms)
    r.lease = ms
    return now_us + ms * 1000
  end},
}

local ids, outcome = {}, {}
local now_is = {} -- an extension and an ack of one item may meet in one call
for i = first, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', records, unpack(ids))
local readied, removed = 0, 0
for position, id in ipairs(ids) do
  local at = first + (position - 1) * 7
  local named = {epoch = tonumber(ARGV[at + 1]), n = tonumber(ARGV[at + 2])}
  local token, verb, ms, text = ARGV[at + 3], VERBS[ARGV[at + 4]], tonumber(ARGV[at + 5]), ARGV[at + 6]
  local packed = held[position]
  local r = now_is[id] or packed and (ARGV[at + 4] == 'ack' and read_head(packed) or read_record(packed))
  local mine = r and r.token == token and not newer(named, r)
  if mine and r.state == 'C' then
    outcome[position] = 1
    local at_us = verb.at_us(r, ms)
    if verb.state ~= 'X' and text ~= '' then with_note(r, string.sub(text, 1, REASON_MAX)) end
    decide(id, r, verb.state, token, at_us)
    now_is[id] = r
    if verb.state == 'Q' then readied = readied + 1 end
    if verb.state == 'X' then removed = removed + 1 end
  else
    outcome[position] = mine and r.state == verb.state and 1 or 0
    if r and not position_of[id] then
      if r.epoch < epoch then
        r = read_record(packed)
        decide(id, r, r.state, r.token, stands_at_us(id, r))
      else
        report(id, packed, stands_at_us(id, r))
      end
    end
  end
end
commit()
wake(readied)
if trim == '1' and removed > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removed) end
return {'OK', outcome, decided}
