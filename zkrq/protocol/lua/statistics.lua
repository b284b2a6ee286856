#!lua flags=allow-oom
-- purpose: sum up a queue: its items by state, whether it is paused, how long its oldest ready item has been due (-1:
-- none; more than that if EXPIRED_MAX expired ones stand before it), how many items have a key or a time to live, how many tombstones there are,
-- how many items have been removed since the queue was made, whether it was deleted and no item has come since, its limits
-- (_limits.lua), with the time until these let another claim begin: 0: now; -1: when a claim ends; how many groups have
-- items that are due or claimed, how many of them stand in line, and how many are kept out of it; how many damaged
-- entries are set aside (set_aside.lua); and at which moment the pause ends by itself, as its client has named it (0: it does not).
-- KEYS: server records ready scheduled groups tombstones keys expiring lead aside
-- ARGV: epoch generation
-- reply: OK ready scheduled claimed dead expired paused waited_ms keyed expiring tombstones removed deleted limits claim_ms groups in_line blocked set_aside paused_until_ms
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation()
  local settings = open(LIMITS)
  local is_paused, _, until_ms = limits.pause(open(PAUSE))
  local paused = is_paused and 1 or 0
  local ready_now, later, held, died, over = totals()
  local EXPIRED_MAX = 50 -- expired items passed over, of each priority

  -- Return the first score of this priority that is due, and not of an expired item; nil if there is none.
  local function first_living(index, priority, score)
    local page = redis.call('ZRANGEBYSCORE', index, score, rank(priority, now_us), 'WITHSCORES', 'LIMIT', 0, EXPIRED_MAX)
    for i = 1, #page, 2 do
      local expires_us = tonumber(redis.call('ZSCORE', expiring, (read_entry(page[i]))) or -1)
      if expires_us < 0 or expires_us > now_us or i == 2 * EXPIRED_MAX - 1 then return tonumber(page[i + 1]) end
    end
  end

  local waited_us = -1
  for _, index in ipairs(ready_now > 0 and {ready, scheduled} or {}) do
    each_priority(index, function(priority, score)
      if over > 0 then score = first_living(index, priority, score) end
      waited_us = score and math.max(waited_us, now_us - due_of(priority, score)) or waited_us
    end)
  end
  local is_bare = paused + number('removed') + number('queued') + held + died == 0 and (numbers.limits or '') == ''
  local is_deleted = is_bare and redis.call('HEXISTS', records, DELETED)
  local slots, starts, starts_at = limits.left()
  local claim_ms = slots <= 0 and -1 or starts <= 0 and math.ceil((starts_at - now_us) / 1000) or 0
  return {'OK', ready_now, later, held, died, over, paused, waited_us < 0 and -1 or math.floor(waited_us / 1000),
    redis.call('HLEN', keys), redis.call('ZCARD', expiring), redis.call('LLEN', tombstones), number('removed'), is_deleted or 0,
    settings and settings.states == 'P' and settings.tail or '', claim_ms, redis.call('HLEN', groups) - number('remembered'), number('in_line'), number('blocked'), redis.call('HLEN', aside),
    is_paused and until_ms or 0}
end
