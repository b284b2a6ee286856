#!lua flags=allow-oom
-- purpose: publish a message to the present listeners of a topic (client/topics.py); nothing is stored.
-- count: how many listen here; -1: this user may not publish there.  Repeated, it is published again: listeners know it by its id.
-- KEYS: server
-- topic: deployment, colon, topic (keys.py).
-- ARGV: epoch generation topic body
-- reply: OK count
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(topic, body)
  return {'OK', publish(string.gsub(server, 'server$', 'topic:') .. topic, body) or -1}
end
