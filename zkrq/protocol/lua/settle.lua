#!lua flags=allow-oom
-- purpose: settle claimed items.  Verbs: ack (gone), nack (queued again after ms, one failure more), release (queued
-- again in its place; the holder is alive and the item did not fail, so the delivery does not count), bury (dead
-- letter, text is the reason), extend (the deadline moves to ms from now).
-- A claim is identified by its token, and by a version no newer than the record's.  A verb repeated with the same token
-- is answered as done, and decided again under the present epoch.
-- buried_us: the moment, by this server's clock, in the tombstones of the acked items.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- version: as it is packed in the record.  how: the verb, for all but ack followed by ms and text, separated by spaces.
-- dead_max, dead_age_ms: as in claim.lua.
-- ARGV: epoch generation put_window_ms trim dead_max dead_age_ms / id version token how
-- reply: OK dropped_letters buried_us [outcome; by position: 0 lost, 1 done, more: acked, and the n of what it is now] [id record left_ms; of everything else decided here, and of what a lost one is now]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake lease tombstones reply letters
leading_since_us(0)
local REASON_MAX = 1000 -- bytes kept of a reason

local VERBS = {
  ack = {state = 'X', at_us = function() return now_us end},
  nack = {state = 'Q', at_us = function(r, ms)
    r.failures = r.failures + 1
    return now_us + ms * 1000
  end},
  release = {state = 'Q', at_us = function(r)
    r.attempts = math.max(0, r.attempts - 1)
    return math.min(r.due, now_us)
  end},
  bury = {state = 'D', at_us = function() return now_us end},
  extend = {state = 'C', at_us = function(r, ms)
    r.lease = ms
    return now_us + ms * 1000
  end},
}

local ids, outcome = {}, {}
local now_is = {}
for i = first, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', records, unpack(ids))
local readied, buried = 0, 0

local function settle(position, id, version, token, how)
  local name, ms, text = string.match(how, '^(%a+) (%d+) (.*)$')
  local verb, version_epoch, version_n = VERBS[name or how], struct.unpack('<I4I4', version)
  local named, packed = {epoch = version_epoch, n = version_n}, held[position]
  local r = now_is[id] or packed and read_record(packed)
  local mine = r and r.token == token and not newer(named, r)
  if mine and r.state == 'C' then
    outcome[position] = 1
    local at_us = verb.at_us(r, tonumber(ms))
    if verb.state ~= 'X' and text ~= '' then with_note(r, string.sub(text, 1, REASON_MAX)) end
    decide(id, r, verb.state, token, at_us)
    now_is[id] = r
    if verb.state == 'Q' then readied = readied + 1 end
    if verb.state == 'D' then buried = buried + 1 end
  else
    outcome[position] = mine and r.state == verb.state and 1 or 0
    if r and not position_of[id] then tell_as_is(id, packed, r) end
  end
end

-- Settle the usual ack, of a claim of this epoch without marks.  Its n alone describes the tombstone, and the
-- tombstones of one claim request are alike.
local last_version, last_token, last_n, last_record, last_gone, last_holding

local function ack(position, id, version, token)
  if version ~= last_version or token ~= last_token then
    local _, n = struct.unpack('<I4I4', version)
    last_version, last_token, last_n = version, token, n + 1
    last_record, last_gone = write_gone(epoch, last_n, token, now_us), struct.pack('<I4I4', epoch, last_n)
    last_holding = holding_of(token)
  end
  local packed = held[position]
  if not packed or string.byte(packed, STATE_AT) ~= CLAIMED or string.byte(packed, PRIORITY_AT) >= MARK
    or string.sub(packed, VERSION_AT, STATE_AT - 1) ~= version
    or string.sub(packed, TOKEN_AT + 1, TOKEN_AT + string.byte(packed, TOKEN_AT)) ~= token then
    return settle(position, id, version, token, 'ack')
  end
  outcome[position] = last_n
  append_pair(new_records, id, last_record)
  append(new_tombstones, tombstone_of(string.sub(packed, PUSHED_AT, DUE_AT - 1), last_gone, id))
  append(leaving[claimed], id)
  append(leaving[holdings], last_holding .. id)
end

local has_more = {} -- an extension and an ack of one item may meet in one call
for position, id in ipairs(ids) do
  if ARGV[first + 4 * position - 1] ~= 'ack' then has_more[id] = true end
end
local at = first
for position, id in ipairs(ids) do
  local decide_it = ARGV[at + 3] == 'ack' and not has_more[id] and ack or settle
  decide_it(position, id, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  at = at + 4
end
commit()
local dropped_letters = buried > 0 and drop_dead_letters() or 0
wake(readied)
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
return {'OK', dropped_letters, now_us, outcome, decided}
