#!lua flags=allow-oom
-- purpose: read how far the work on claimed items is, as the holders of the present claims have told this server.
-- KEYS: server records reports
-- ARGV: epoch generation / id
-- reply: OK [age_us report; of each, -1 and empty if nothing is known]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function told(id)
  local bundle, position = stored_at(id)
  local r = open(bundle)
  if not r or position > r.size or string.byte(r.states, position) ~= CLAIMED then return end
  local report = redis.call('HGET', reports, entry_of(r, position))
  if not report then return end
  local token = token_at(r, string.byte(r.named, position) - NONE)
  local before = 8 + #token
  if #report <= before then return end
  if string.sub(report, 9, before + 1) ~= token .. '\n' then return end -- of an earlier claim
  return math.max(0, now_us - struct.unpack('<d', report)), string.sub(report, before + 2)
end

local function operation()
  local flat = {}
  for i = first, last do
    local age_us, text = told(ARGV[i])
    flat[#flat + 1], flat[#flat + 2] = age_us or -1, text or ''
  end
  return {'OK', flat}
end
