#!lua flags=allow-oom
-- purpose: give a server a new generation, by compare-and-set on its present one, so that a late duplicate can never
-- touch a newer life.  The server's data is not touched: under the new generation it does not count.
-- expected: its present generation, empty for none, and for one that cannot be read (_gate.lua).  name: the id under which the view will know it.
-- deployment: the nonce of the namespace's founding.  A later epoch matters only if it is the same deployment's.
-- clock: what this server's clock said when it was identified, in microseconds; after window_ms the call is too late,
-- since a server that was flushed meanwhile has no generation left to compare.
-- holding: 1 if it may hold queues; 0 refuses such a server.
-- KEYS: server queues
-- ARGV: epoch generation expected name deployment clock window_ms holding
-- reply: OK
-- reply: STALE epoch
-- reply: MISMATCH generation
-- reply: HOLDSDATA
-- reply: LATE
local function operation(expected, name, deployment, clock, window_ms, holding)
  if now_us > clock + window_ms * 1000 then return {'LATE'} end
  local known = redis.call('HMGET', server, 'generation', 'epoch', 'deployment')
  local seen = gate.read_epoch(known[2])
  local present = seen and known[1] and string.find(known[1], '^[!-~]+$') and known[1] or ''
  if present == generation then -- repeated, or the server has another name now
    redis.call('HSET', server, 'name', name)
    return {'OK'}
  end
  if present ~= expected then return {'MISMATCH', present} end
  if known[3] == deployment and tonumber(epoch) < (seen or 0) then return {'STALE', known[2]} end
  if holding == '0' and redis.call('SCARD', queues) > 0 then return {'HOLDSDATA'} end
  redis.call('HSET', server, 'generation', generation, 'epoch', epoch, 'name', name, 'deployment', deployment)
  return {'OK'}
end
