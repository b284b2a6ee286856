#!lua flags=allow-oom
-- purpose: decide about a flow itself (_flows.lua): a record of the queue has it, and is replicated like an item's.  At home that is
-- all of the flow, in another queue which has members a leg of it.
-- verb: begin; open: its maker keeps it so; join: home names a leg; wait: members wait for some of this queue, by name, at home: of
-- any; live: members came to life in a leg; seal: nothing is pushed into it from now on but by decisions, each of
-- which raises its stamp; look: nothing changes, but that a flow fails whose deadline has passed, or whose maker is gone; fail:
-- its queued members are cancelled, and it ends when the claimed ones have ended; end: it is done, or has failed, if it is sealed or
-- failing, this is its stamp, and nothing lives here; cancel; finish: it is done, whatever is left; close: all that was held for its
-- end was opened, in all of its legs.  A verb that does not fit the flow's stage changes nothing.
-- life: when the flow has begun at home, by its server's clock in milliseconds: so a leg of an earlier flow of this name is told
-- from one of this; 0: whatever it is, and for home, which says it.
-- keep_ms: for how long the outcome of a flow that begins is kept.  policy, deadline_ms: see _flows.lua; 0: it has none.
-- outer: of a flow that begins, the flow of which it is a member; empty: none.  leg: the queue that home names.  remaining: letters of what is left in other legs, for end, and how many members were acked, are dead
-- and were removed otherwise, after commas.
-- before, now: U unknown, O open, S sealed, F failing, E ended.  outcome: of one that has ended.  kinds: what is left of it here.
-- is_closed: 1 if it has ended, and nothing is left to open.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation queue put_window_ms trim flow verb stamp keep_ms policy deadline_ms leg life remaining outer
-- reply: OK before now stamp outcome kinds policy is_closed life keep_ms outer [leg; queues] [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch

local OPEN_MS = 3600000 -- milliseconds for which a flow stays open that its maker does not keep so
local LEGS_MAX = 32 -- queues beside its home in which a flow has members
local VERBS = {}

-- r: the record of the flow, nil if there is none; says: its text (flows.read); given: the arguments of the call.
local function begin(r, _, given)
  r = r or begin_itself(given.id)
  touch(r)
  drop_own(r, 1, 1)
  set(r, 1, 1, string.byte('P'), 0)
  r.rows, r.row_owners = '', {} -- of an earlier flow of this name
  r.pushed_at = given.life > 0 and given.life or now_ms
  flows.begin_fields(r, given.outer)
  local policy, deadline_ms = given.policy, tonumber(given.deadline_ms)
  if deadline_ms > 0 then policy, r.due = policy .. 'd', now_us + 1000 * deadline_ms end
  if not string.find(policy, 'l', 1, true) then set_own(r, 1, now_us + 1000 * OPEN_MS, 0) end
  flows.say(r, {stage = 'O', stamp = 0, keep_ms = tonumber(given.keep_ms), policy = policy, outcome = '', legs = ''})
end

local function move(to)
  return function(r, says)
    touch(r)
    drop_own(r, 1, 1)
    says.stage = to
    flows.say(r, says)
  end
end

-- Members wait for others of this queue, by name.
local function wait(r, says)
  if string.find(says.policy, 'w', 1, true) then return end
  says.policy = says.policy .. 'w'
  flows.say(r, says)
end

local function raise_stamp(r, says)
  says.stamp = says.stamp + 1
  flows.say(r, says)
end

local function join(r, says, given)
  if given.life > 0 and given.life ~= r.pushed_at then return end
  if string.find(' ' .. says.legs .. ' ', ' ' .. given.leg .. ' ', 1, true) then return end
  if select(2, string.gsub(says.legs, '%S+', '')) >= LEGS_MAX then return end
  says.legs = says.legs == '' and given.leg or says.legs .. ' ' .. given.leg
  raise_stamp(r, says)
end

-- End a flow; all is done at once if nothing is to be opened.
local function finish(r, says, given, outcome)
  touch(r)
  drop_own(r, 1, 1)
  says.stage, says.outcome = 'E', outcome .. string.match(given.remaining, '^%a*(.*)$')
  flows.say(r, says)
  if says.legs == '' and not string.find(given.kinds, outcome == 'cancelled' and '[LNWV]' or '[NWV]') then flows.close(r) end
end

local function finish_as(outcome)
  return function(r, says, given) finish(r, says, given, outcome) end
end

local function finish_by_itself(r, says, given)
  local left = given.kinds .. string.match(given.remaining, '^%a*')
  if says.stamp ~= given.stamp or string.find(left, '[LN]') then return end
  local is_done = not string.find(left, 'D', 1, true)
    and (string.find(says.policy, 'm', 1, true) or not string.find(left, 'M', 1, true))
  if says.stage == 'F' or not is_done and string.find(left, 'V', 1, true) then
    finish(r, says, given, 'failed')
  elseif is_done then
    finish(r, says, given, 'done')
  end
end

-- One that was cancelled has cancelled its inner flows before.
local function close(r, _, given)
  local is_open = r.states ~= 'P' or string.find(given.kinds, '[NWV]') or flows.outcome(r) == 'cancelled' and flows.has_nested(given.flow)
  if not is_open then flows.close(r) end
end

-- By stage: what each verb does, and which ones are nothing but a look.
VERBS.U = {begin = begin}
VERBS.O = {
  open = function(r)
    if not own_of(r, 1) then return end
    touch(r)
    set_own(r, 1, now_us + 1000 * OPEN_MS, 0)
  end,
  join = join, wait = wait, live = raise_stamp, seal = move('S'), fail = move('F'), cancel = finish_as('cancelled'), finish = finish_as('done'),
}
VERBS.S = {
  join = join, wait = wait, live = raise_stamp, fail = move('F'), ['end'] = finish_by_itself, cancel = finish_as('cancelled'),
  finish = finish_as('done'),
}
VERBS.F = {live = raise_stamp, ['end'] = finish_by_itself, cancel = finish_as('cancelled'), finish = finish_as('done')}
VERBS.E = {
  close = close,
  begin = function(r, says, given)
    if r.states ~= 'P' and given.life > 0 and given.life ~= r.pushed_at then begin(r, says, given) end
  end,
}

local function operation(queue, put_window_ms, trim, flow, verb, stamp, keep_ms, policy, deadline_ms, leg, life, remaining, outer)
  local known, before = flows.stage_of(flow)
  local given = {flow = flow, outer = outer, id = flows.id(flow), kinds = flows.kinds(flow), stamp = tonumber(stamp), keep_ms = keep_ms, policy = policy,
    deadline_ms = deadline_ms, leg = leg, life = tonumber(life), remaining = remaining}
  local says = known and known.states == 'P' and flows.read(known) or nil
  local is_late = (before == 'O' or before == 'S') and flows.is_late(known, says)
  local act = VERBS[before][is_late and verb ~= 'cancel' and verb ~= 'finish' and 'fail' or verb]
  if act then act(known, says, given) end
  local r, now = flows.stage_of(flow)
  if r and r.decided then list_queue(queue) elseif r then tell_as_is(r) end
  local is_running = r and r.states == 'P'
  says = is_running and flows.read(r) or {stamp = 0, policy = '', legs = '', keep_ms = 0}
  local outcome, legs = now == 'E' and flows.outcome(r) or '', {}
  for each in string.gmatch(says.legs, '%S+') do legs[#legs + 1] = each end
  commit()
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', before, now, now ~= 'E' and says.stamp or 0, outcome, given.kinds, says.policy, now == 'E' and not is_running and 1 or 0,
    r and r.pushed_at or 0, says.keep_ms, flows.outer(r), legs, decisions()}
end
