#!lua flags=allow-oom
-- purpose: decide about a flow itself (_flows.lua): a record of the queue has it, and is replicated like an item's.
-- verb: begin; seal: nothing is pushed into it from now on but by decisions, each of which raises its stamp; look: nothing
-- changes; end: it is done, if it is sealed, this is its stamp, and nothing holds it up here; cancel; finish: it is done,
-- whatever is left.  A verb that does not fit the flow's stage changes nothing.
-- keep_ms: for how long the outcome of a flow that begins is kept.
-- before, now: U unknown, O open, S sealed, E ended.  outcome: of one that has ended.  kinds: what is left of it here.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation queue put_window_ms trim flow verb stamp keep_ms
-- reply: OK before now stamp outcome kinds [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch

local VERBS = {}

-- r: the record of the flow, nil if there is none.
function VERBS.begin(r, stage, id, keep_ms)
  if stage ~= 'U' then return stage end
  r = r or begin_itself(id)
  touch(r)
  drop_own(r, 1, 1)
  set(r, 1, 1, string.byte('P'), 0)
  flows.keep(r, '0', 0, keep_ms)
  return 'O'
end

function VERBS.seal(r, stage)
  if stage ~= 'O' then return stage end
  touch(r)
  local _, stamp, keep_ms = flows.read(r)
  flows.keep(r, '1', stamp, keep_ms)
  return 'S'
end

function VERBS.look(_, stage)
  return stage
end

local function finish(r, stage, outcome)
  if stage ~= 'O' and stage ~= 'S' then return stage end
  touch(r)
  flows.finish(r, outcome)
  return 'E'
end

VERBS['end'] = function(r, stage, _, _, stamp, kinds)
  if stage ~= 'S' or select(2, flows.read(r)) ~= stamp or string.find(kinds, '[LDM]') then return stage end
  return finish(r, stage, 'done')
end

function VERBS.cancel(r, stage)
  return finish(r, stage, 'cancelled')
end

function VERBS.finish(r, stage)
  return finish(r, stage, 'done')
end

local function operation(queue, put_window_ms, trim, flow, verb, stamp, keep_ms)
  local id, kinds = flows.id(flow), (flows.left(flow, 1))
  local known, before = flows.stage_of(flow)
  local now = VERBS[verb](known, before, id, tonumber(keep_ms), tonumber(stamp), kinds)
  local r = open(id)
  if r and r.decided then list_queue(queue) elseif r then tell_as_is(r) end
  local present = (now == 'O' or now == 'S') and select(2, flows.read(r)) or 0
  local outcome = now == 'E' and flows.outcome(r) or ''
  commit()
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', before, now, present, outcome, kinds, decisions()}
end
