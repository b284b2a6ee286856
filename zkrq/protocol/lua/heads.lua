#!lua flags=allow-oom
-- purpose: read which bundles this server knows, and in which version, to compare it with another server: one page of
-- all, or the named ones.
-- Expired tombstones are left out, because each server drops them at its own time; so are damaged records, which are told
-- apart.
-- checks: 1 to look at payloads and the index of flows, too, which takes longer.  Damaged are then also bundles with such
-- payloads; those that are alone and large are not looked at here, but where they are read (_copies.lua).  Unlisted are
-- bundles that the index of flows does not name as it should (_flows.lua).
-- has_flows: 1 if this is the last page, and there is something in that index.  Without checks it is 0, and nothing is unlisted.
-- cursor: 0 to begin, then the result of the last call, until that is 0.  count: approximate number of bundles.
-- KEYS: server records payloads members lead
-- ARGV: epoch generation put_window_ms cursor count checks / id
-- reply: OK cursor [id head; of each: format and version as the record begins with them] [id; of each that is damaged here] [id; of each that is unlisted] has_flows
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(put_window_ms, cursor, count, checks)
  local next_cursor, found = '0', {}
  if first <= last then
    for i = first, last do
      local at = #found
      found[at + 1], found[at + 2] = ARGV[i], redis.call('HGET', records, ARGV[i])
    end
  else
    local page = redis.call('HSCAN', records, cursor, 'COUNT', count)
    next_cursor, found = page[1], page[2]
  end
  local LOOKED_AT_MAX = 65536 -- bytes of payloads
  local function has_damaged_payload(r, id)
    if not string.find(r.states, '[QRCD]') or redis.call('HSTRLEN', payloads, id) > LOOKED_AT_MAX then return false end
    local whole = redis.call('HGET', payloads, id)
    return whole and not is_readable(whole, true)
  end

  local is_checked, heads, unreadable, unlisted = checks == '1', {}, {}, {}
  for i = 1, #found, 2 do
    local id, packed = found[i], found[i + 1]
    local r = packed and places.is_text(id) and read_record(packed)
    if packed and (not r or is_checked and has_damaged_payload(r, id)) then unreadable[#unreadable + 1] = id end
    if is_checked and r and (r.fields ~= '' or string.byte(id) == 1 and flows.is_itself(id)) then
      r.bundle = id
      if flows.missing(r)[1] then unlisted[#unlisted + 1] = id end
    end
    if r and (id == PAUSE or id == LIMITS or not is_expired(r, put_window_ms)) then
      local at = #heads
      heads[at + 1], heads[at + 2] = id, places.head_of(packed)
    end
  end
  local has_flows = is_checked and next_cursor == '0' and flows.any()
  return {'OK', next_cursor, heads, unreadable, unlisted, has_flows and 1 or 0}
end
