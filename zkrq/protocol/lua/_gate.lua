-- purpose: guard the operations: a server answers only in the life in which the view knows it.
-- Other or missing generation: NOTINSYNC, and nothing is written.  Lower epoch: STALE.  Greater epoch: adopt it.

-- Return the refusal, nil if the call is let in.
local function gate()
  local known = redis.call('HMGET', server, 'generation', 'epoch')
  if known[1] ~= generation then return {'NOTINSYNC', known[1] or ''} end
  epoch = tonumber(epoch)
  if epoch < tonumber(known[2]) then return {'STALE', known[2]} end
  if epoch > tonumber(known[2]) then redis.call('HSET', server, 'epoch', epoch) end
end
