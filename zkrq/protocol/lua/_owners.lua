-- purpose: remember which owners claim here.  A claim's token is owner/seq; seq grows with each claim request of the
-- owner, one at a time, so that a repeated request is recognised and a late one is refused.
local FENCED_MEMORY_MS = 600000 -- during which a dead owner's late requests are refused by name
local WAITER_MEMORY_MS = 60000 -- a waiter that has not asked again for this long is forgotten

-- Note the owners of all claims of a bundle.
local function note_owners(r)
  for row = 1, #r.rows / ROW_BYTES do
    local owner, seq = row_at(r, row)
    if seq > (noted[owner] or 0) then
      noted[owner] = noted[owner] or (tonumber(redis.call('HGET', owners, owner) or 0) or 0)
      if seq > noted[owner] then
        redis.call('HSET', owners, owner, seq)
        noted[owner] = seq
      end
    end
  end
end

local function is_fenced(owner)
  return redis.call('ZSCORE', fenced_owners, owner) ~= false
end

-- Drop entries of an index from before a moment; what is left over is dropped by the next calls.
local function forget_before(index, moment_ms)
  local FORGET_MAX = 100 -- entries dropped in one call
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', moment_ms, 'LIMIT', 0, FORGET_MAX)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
end

local function fence_owner(owner)
  redis.call('ZADD', fenced_owners, now_ms, owner)
  forget_before(fenced_owners, now_ms - FENCED_MEMORY_MS)
end
