#!lua flags=allow-oom
-- purpose: give an empty server a new generation, by compare-and-set on the one it has, so that a late duplicate can
-- never touch a newer life.
-- expected: the generation that it has now, empty for none.  name: the id under which the view will know it.
-- KEYS: server queues
-- ARGV: epoch generation expected name
-- reply: OK
-- reply: MISMATCH generation
-- reply: HOLDSDATA
local known = redis.call('HGET', server, 'generation') or ''
if known == generation then return {'OK'} end
if known ~= expected then return {'MISMATCH', known} end
if redis.call('SCARD', queues) > 0 then return {'HOLDSDATA'} end
redis.call('HSET', server, 'generation', generation, 'epoch', epoch, 'name', name)
return {'OK'}
