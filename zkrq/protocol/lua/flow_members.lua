#!lua flags=allow-oom
-- purpose: read what is left of a flow on one server (_flows.lua).
-- stage, outcome, legs: as in flow.lua.  kinds: letters of what is left.  done: members that were acked, as far as is known here.
-- living, died, missed: items of these kinds, about as many where there are many; of the flow at its end once that is known.
-- outer: the flow of which it is a member, empty: none.  inner: the flow for which a member stands, empty: it is an item.
-- KEYS: server records members lead
-- ARGV: epoch generation flow
-- reply: OK stage outcome kinds done living died missed outer [leg; queues] [kind id inner; of items that live (L), wait for others (N), are dead letters (D) or were removed otherwise than by an ack (M), some of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(flow)
  local IDS_MAX = 100 -- items of each kind that are named in one reply
  local r, stage = flows.stage_of(flow)
  local ids, legs, outcome, done, died, missed = {}, {}, '', flows.done(flow), 0, 0
  local living = flows.count('L', flow, IDS_MAX, ids) + flows.count('N', flow, IDS_MAX, ids)
  died, missed = flows.count('D', flow, IDS_MAX, ids), flows.count('M', flow, IDS_MAX, ids)
  if stage == 'E' then outcome, done, died, missed = flows.outcome(r) end
  for each in string.gmatch(r and r.states == 'P' and flows.read(r).legs or '', '%S+') do legs[#legs + 1] = each end
  return {'OK', stage, outcome, flows.kinds(flow), done, living, died, missed, flows.outer(r), legs, ids}
end
