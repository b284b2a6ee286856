-- purpose: who claims here.  A claim's token is owner/seq; seq grows with each claim request of the owner, one at a
-- time, so that a repeated request is known again and a late one is refused.
local FENCED_MEMORY_MS = 600000 -- how long a dead owner's late requests are still refused by name

local function owner_of(token)
  return string.match(token, '^(.*)/(%d+)$')
end

local noted

local function note_owner(token)
  if token == noted then return end
  noted = token
  local owner, seq = owner_of(token)
  if tonumber(seq) > tonumber(redis.call('HGET', owners, owner) or 0) then redis.call('HSET', owners, owner, seq) end
end

local function is_fenced(owner)
  return redis.call('ZSCORE', fenced_owners, owner) ~= false
end

local function fence_owner(owner)
  redis.call('ZADD', fenced_owners, now_ms, owner)
  redis.call('ZREMRANGEBYSCORE', fenced_owners, '-inf', now_ms - FENCED_MEMORY_MS)
end
