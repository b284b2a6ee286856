#!lua flags=allow-oom
-- purpose: give a server a new generation, by compare-and-set on the one it has, so that a late duplicate can never
-- touch a newer life.  What it holds is not touched here: nobody believes it under the new generation.
-- expected: the generation that it has now, empty for none.  name: the id under which the view will know it.
-- deployment: the nonce of the namespace's founding.  A later epoch is one of the same deployment's, or means nothing.
-- clock: what this server's clock said when it was met, in microseconds; after window_ms the call is too late, since a
-- server that was flushed meanwhile has no generation left to compare.
-- holding: 1 where it may hold queues; 0 refuses such a server.
-- KEYS: server queues
-- ARGV: epoch generation expected name deployment clock window_ms holding
-- reply: OK
-- reply: STALE epoch
-- reply: MISMATCH generation
-- reply: HOLDSDATA
-- reply: LATE
-- include: clock
if now_us > clock + window_ms * 1000 then return {'LATE'} end
local known = redis.call('HMGET', server, 'generation', 'epoch', 'deployment')
if known[1] == generation then return {'OK'} end
if (known[1] or '') ~= expected then return {'MISMATCH', known[1] or ''} end
if known[3] == deployment and tonumber(epoch) < tonumber(known[2] or 0) then return {'STALE', known[2]} end
if holding == '0' and redis.call('SCARD', queues) > 0 then return {'HOLDSDATA'} end
redis.call('HSET', server, 'generation', generation, 'epoch', epoch, 'name', name, 'deployment', deployment)
return {'OK'}
