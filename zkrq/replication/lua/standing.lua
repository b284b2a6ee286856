#!lua flags=allow-oom
-- purpose: read what a server knows of a queue besides its items: how many they are, before which moment no put is
-- taken, and its owners: the number of their last claim request, and how long ago they were fenced.
-- clock: this server's, from which page.lua is to count.
-- KEYS: server records owners fenced_owners lead
-- ARGV: epoch generation
-- reply: OK items clock floor_ms [owner seq fenced_ago_ms of each, -1 for one that is not fenced]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock
local known, order = {}, {}
local function note(owner)
  if not known[owner] then
    known[owner] = {0, -1}
    order[#order + 1] = owner
  end
  return known[owner]
end
local claiming = redis.call('HGETALL', owners)
for i = 1, #claiming, 2 do note(claiming[i])[1] = claiming[i + 1] end
local fenced = redis.call('ZRANGE', fenced_owners, 0, -1, 'WITHSCORES')
for i = 1, #fenced, 2 do note(fenced[i])[2] = math.max(0, now_ms - fenced[i + 1]) end
local flat = {}
for _, owner in ipairs(order) do
  local at = #flat
  flat[at + 1], flat[at + 2], flat[at + 3] = owner, known[owner][1], known[owner][2]
end
return {'OK', redis.call('HLEN', records), now_us, redis.call('HGET', lead, 'floor_ms') or 0, flat}
