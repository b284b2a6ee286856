#!lua flags=allow-oom
-- purpose: keep how far the work on a claimed item is, as its holder says.  Only this server knows it, so it is lost with
-- it, and with the next change of the primary.  Nothing removes it when the item ends: told_reports.lua tells it of the claim that
-- reported it only, and all reports go together when there are many, because those that matter come again within seconds.
-- token: of the claim request, as in settle.lua.
-- KEYS: server records reports
-- ARGV: epoch generation id token text
-- reply: OK kept
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(id, token, text)
  local REPORTS_MAX = 10000 -- items of a queue
  local bundle, position = stored_at(id)
  local r = open(bundle)
  if not r or position > r.size or string.byte(r.states, position) ~= CLAIMED then return {'OK', 0} end
  if token_at(r, string.byte(r.named, position) - NONE) ~= token then return {'OK', 0} end
  if redis.call('HLEN', reports) >= REPORTS_MAX then redis.call('UNLINK', reports) end
  redis.call('HSET', reports, entry_of(r, position), struct.pack('<d', now_us) .. token .. '\n' .. text)
  return {'OK', 1}
end
