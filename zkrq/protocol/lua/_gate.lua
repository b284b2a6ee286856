-- purpose: guard the operations: a server answers only in the life in which the view knows it.
-- Other or missing generation: NOTINSYNC, and nothing is written.  Lower epoch: STALE.  Greater epoch: adopt it, unless
-- the client only looks: it relies on nothing that a later call of an older view might change.
-- A server whose epoch cannot be read cannot tell which calls are too late.  So it has no generation either, until it is
-- enrolled again.  server_info.py reads both in the same way.
local gate = {} -- one name for all, because Lua allows 200 of them

-- Return a server's epoch, nil if that cannot be read.
function gate.read_epoch(text)
  local DIGITS_MAX = 15 -- of an epoch; with more it is not exact here
  return text and #text <= DIGITS_MAX and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Return the refusal, nil if the call is let in.
function gate.refusal(gated)
  local known, called = redis.call('HMGET', server, 'generation', 'epoch'), epoch
  if known[1] ~= generation then return {'NOTINSYNC', known[1] or ''} end
  epoch = tonumber(called)
  if known[2] == called then return end
  local seen = gate.read_epoch(known[2])
  if not seen then return {'NOTINSYNC', ''} end
  if epoch < seen then return {'STALE', known[2]} end
  if epoch > seen and gated == 'adopts' then redis.call('HSET', server, 'epoch', epoch) end
end
