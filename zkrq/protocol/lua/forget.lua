#!lua flags=allow-oom
-- purpose: forget a queue of which nothing is left here: no item, no dead letter, no pause, no limit.
-- It stays as long as a tombstone, its deletion, the end of a pause or of limits, a consumer, a fence or a refusal of late pushes is
-- remembered, or would be by a server that has missed nothing.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners fenced_owners lead waiting reports aside figures
-- ARGV: epoch generation queue put_window_ms
-- reply: OK forgotten
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, put_window_ms)
  local function is_needed()
    -- No item is ever without its index.
    if redis.call('EXISTS', ready, scheduled, members, claimed, dead) > 0 then return true end
    local kept = 0
    for _, packed in ipairs(redis.call('HMGET', records, PAUSE, LIMITS)) do
      if packed then
        local r = read_record(packed)
        local ended_us = r and limits.pause_ends_at(r)
        local is_over = ended_us and ended_us <= now_us - 2000 * put_window_ms
        if not r or not (is_over or is_expired(r, put_window_ms)) then return true end -- nor does one that is in force
        kept = kept + 1
      end
    end
    if redis.call('HLEN', records) > kept or redis.call('EXISTS', tombstones, owners, aside) > 0 then return true end
    return tonumber(redis.call('HGET', lead, 'floor_ms') or 0) > now_ms - put_window_ms
      or redis.call('ZCOUNT', fenced_owners, now_ms - FENCED_MEMORY_MS, '+inf') > 0
      or redis.call('ZCOUNT', waiting, now_ms - WAITER_MEMORY_MS, '+inf') > 0
  end

  if is_needed() then return {'OK', 0} end
  redis.call('UNLINK', records, payloads, ready, scheduled, members, groups, claimed, holdings, dead, recent, tombstones, keys, expiring, notes,
    owners, fenced_owners, lead, waiting, reports, aside, figures)
  redis.call('SREM', queues, queue)
  return {'OK', 1}
end
