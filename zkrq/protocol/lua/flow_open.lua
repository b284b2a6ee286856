#!lua flags=allow-oom
-- purpose: decide that what is held for a flow that has ended is queued, or removed, as its outcome says; some at a time.
-- The state of these items moves, so clients that do this together open each once.  Queued members of a flow that is failing, or
-- was cancelled, are removed, and so are those that wait for others of a flow that is failing, or has ended.
-- outcome: of the flow, if this is a leg, which has ended then; empty: as home says here.  life: as in flow.lua; a leg of another
-- flow of this name stays as it is.
-- stop: 1 to remove claimed members, too, of a flow that was cancelled.
-- What stands for this flow in its outer one ends as it does.  What stands for inner flows, of one that is failing or was cancelled,
-- stays until these have ended; a flow that was cancelled is not closed before.
-- opened: number of items of this call.  more: 1 if others may be held.  nested: 1 if inner flows have to be ended.  A flow without legs, and a leg, is closed with the last one.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation put_window_ms trim flow outcome life stop
-- reply: OK opened more nested [id record notes since; of each item, and of the flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, trim, flow, outcome, life, stop)
  local HELD_MAX = 100 -- items opened, or bundles of which members are removed, in one call
  local OPENS = {done = '[TA]', failed = '[FA]'} -- by outcome: letters of what is queued (flows.held_for)
  local r, stage = flows.stage_of(flow)
  local is_leg = outcome ~= ''
  if is_leg and stage ~= 'U' and r.pushed_at ~= tonumber(life) then return {'OK', 0, 0, 0, {}} end
  local says = r and r.states == 'P' and flows.read(r)
  if stage == 'E' then
    outcome = flows.outcome(r)
  elseif is_leg and stage ~= 'U' then
    says.stage, says.outcome = 'E', outcome
    flows.say(r, says)
  elseif not is_leg and stage ~= 'F' then
    return {'OK', 0, 0, 0, {}}
  end
  if r and not r.decided then tell_as_is(r) end

  -- Remove members of a run.
  local function drop(member, from, to, state, row)
    if state == CLAIMED and outcome == 'cancelled' and stop == '1' then
      for position = from, to do tell_cancelled(id_of(member.bundle, member, position), token_at(member, row)) end
    elseif state ~= QUEUED and state ~= REQUEUED then
      return 0
    end
    remove(member, from, to, 0)
    return to - from + 1
  end

  local opened, bundles = 0, 0
  local function drop_all(member)
    local dropped = 0
    if flows.is_held(member) and flows.nested(member) then return false end
    each_run(member, 1, member.size, function(...) dropped = dropped + drop(member, ...) end)
    opened, bundles = opened + dropped, bundles + (dropped > 0 and 1 or 0)
    return bundles >= HELD_MAX
  end
  flows.each_named('N', flow, drop_all)
  if bundles < HELD_MAX and (outcome == '' or outcome == 'cancelled') then flows.each_named('L', flow, drop_all) end
  local held, woken = outcome ~= '' and flows.held(flow, HELD_MAX) or {}, 0
  for _, each in ipairs(held) do
    local _, opens = flows.held_for(each)
    if opens == 'I' then
      flows.end_nested(each, outcome)
    elseif OPENS[outcome] and string.find(opens, OPENS[outcome]) then
      flows.open_held(each)
      woken = woken + 1
    else
      touch(each)
      remove(each, 1, 1, 0)
    end
  end
  local has_more = bundles >= HELD_MAX or #held >= HELD_MAX
  local has_nested = (outcome == '' or outcome == 'cancelled') and flows.has_nested(flow)
  if says and outcome ~= '' and not has_more and not has_nested and (is_leg or says.legs == '') then flows.close(r) end
  commit()
  if woken > 0 then wake(woken) end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', opened + #held, has_more and 1 or 0, has_nested and 1 or 0, decisions()}
end
