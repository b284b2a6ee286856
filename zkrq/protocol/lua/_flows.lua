-- purpose: keep what is known of flows: of each the bundles of its members that live, that have a dead letter, or of which an
-- item was removed otherwise than by an ack, and what is held until it ends (zkrq/protocol/flows.py).
-- members names them, behind all groups, by a byte that no group begins with: that byte, kind, flow, zero byte, bundle.
-- All of it follows from the records, so each server has it; readers check the record of what they find.
-- kind: L an item is queued or claimed; D one is a dead letter; M one was removed otherwise; R one was acked with a result; N a
-- member waits for others, by name, instead of L; W one is held; V the same, for a failure; I one stands for an inner flow, which is
-- held for that flow, and here a member beside. P, without a bundle: there is something to do about the flow itself; E the same:
-- there is not, and its outcome is kept.
-- The record of a flow is in state P until it has ended and all that was held is opened. Its text: stage, stamp, for how many
-- milliseconds its outcome is kept, letters of its policy (f a dead letter fails it, m what is missed is as good as acked, d it
-- has a deadline, l this is a leg, of a flow of another queue, w members here are waited for, at home: in any queue), outcome and
-- figures, and at home the queues of its legs. When it is due is its deadline; its own moment is when it has to be kept open again.
-- Then it is a tombstone that is kept for as long, whose row names the outcome, as one of the window of a key is
-- (push_decided.lua).
-- How many members were acked is a field of lead, for people alone: a server that came later knows of fewer.
local flows = {} -- one name for all, because Lua allows 200 in a library
do
  local RECORD = '\1flow ' -- before the name of a flow
  local MARK = 'zkrq-' -- before the names of bundles (zkrq/base/ids.py)
  local MEMBER, HELD = 'F', 'W' -- kinds of fields in a record
  local DELAY = 'Y' -- digits: milliseconds after its opening until an item that was held is due
  local LEGS = 'L' -- the same of a flow that is closed: what its text has said of its legs
  flows.OUTER = 'O' -- the same of a flow that is nested: the flow of which it is a member
  flows.NESTED = 'I' -- for what an item is held that stands for an inner flow, and the kind of that
  local OUTCOME = '=' -- before the outcome in a row
  local DONE = 'flow ' -- before the name of a flow, in lead
  local PAGE, FEW = 100, 5 -- entries looked at in one command; the same where one that counts is enough
  local LOOKED_MAX = 200 -- bundles that are looked at to count what they have; more are estimated
  local LEFT, HOLDING = {'L', 'D', 'M', 'N', 'W', 'V'}, {'W', 'V'} -- kinds
  local DROPPED = {'M', 'R'} -- kinds of tombstones
  local LIVING, ENDING, COMING = {L = '[QRC]', D = 'D'}, {L = true, D = true, M = true}, {'L', 'N'}
  local HELD_AS = {T = 'W', A = 'W', F = 'V', N = 'N', [flows.NESTED] = 'W'} -- kinds, by the letter of what is held
  local KEEP_MAX_MS = 2 ^ 32 - 1 -- what an entry of a record has room for

  function flows.id(name)
    return RECORD .. name
  end

  local function entry(kind, name, bundle)
    return places.FLOWS .. kind .. name .. '\0' .. bundle
  end

  -- Return the flow of which the items of a bundle are members, nil without one.
  -- It never changes, and is asked for several times in each call.
  function flows.of(r)
    if r.fields == '' then return nil end
    if r.member_of == nil then r.member_of = tails.field(r, MEMBER) or false end
    return r.member_of or nil
  end

  -- Return the flow for which an item was held, and when it is opened (T the flow is done, F failed, A either of them, N the
  -- members have been acked for which it waits, as a member; I never: it stands for that flow in another one, and ends with it);
  -- nil without one.  Return also the names of these members.
  function flows.held_for(r)
    local held = r.fields ~= '' and tails.field(r, HELD)
    if not held then return nil end
    local opens = string.sub(held, 1, 1)
    if opens == 'N' then return flows.of(r), opens, string.sub(held, 2) end
    return string.sub(held, 2), opens
  end

  -- Return the inner flow for which a member stands, also once that has ended; nil: it is an item like others.
  function flows.nested(r)
    local inner, opens = flows.held_for(r)
    return opens == flows.NESTED and inner or nil
  end

  -- Tell whether an item waits for the end of its flow: it is queued for a moment that never comes.
  function flows.is_held(r)
    if not flows.held_for(r) or string.byte(r.states) ~= REQUEUED then return false end
    local moment = own_of(r, 1)
    return moment + r.shift >= places.NEVER_US
  end

  -- Hold an item that was pushed.  Its time to live begins when it is opened.
  function flows.hold(r)
    set_own(r, 1, now_us + places.NEVER_US, 0)
    if r.marks % 2 == EXPIRES then
      local key, _, ttl_us = tails.read(r.tail)
      r.tail = tails.packed(key, now_us + places.NEVER_US, ttl_us)
    end
  end

  -- Open an item that was held: its delay and its time to live begin now.
  function flows.open_held(r)
    touch(r)
    local delay_ms = string.match(tails.field(r, DELAY) or '', '^%d+$')
    local due_us = now_us + math.min(1000 * (tonumber(delay_ms) or 0), places.NEVER_US / 2)
    set_own(r, 1, due_us, select(2, own_of(r, 1)))
    if r.marks % 2 == EXPIRES then
      local key, _, ttl_us = tails.read(r.tail)
      r.tail = tails.packed(key, now_us + ttl_us, ttl_us)
    end
  end

  -- Call visit(from, to, is_acked) with the runs of items that were acked, or removed otherwise.
  local function each_gone(r, visit)
    if not string.find(r.states, 'X', 1, true) then return end
    each_run(r, 1, r.size, function(from, to, state, row)
      if state ~= GONE or places.has_left(r, from) then return end
      visit(from, to, row > 0 and select(2, row_at(r, row)) > 0)
    end)
  end

  -- Return how many items were acked, and whether one was removed otherwise.
  local function gone_of(r)
    local acked, missed = 0, false
    each_gone(r, function(from, to, is_acked)
      if is_acked then
        acked = acked + to - from + 1
      else
        missed = true
      end
    end)
    return acked, missed
  end

  local function has_missed(r)
    return select(2, gone_of(r))
  end

  -- Call visit(position) with the items that were acked with a result.
  local function each_with_result(r, visit)
    for at = 1, #r.own, OWN_BYTES do
      local position, _, ttl_ms = struct.unpack(OWN, r.own, at)
      if ttl_ms > 0 and string.byte(r.states, position) == GONE then visit(position) end
    end
  end

  local function has_result(r)
    local found = false
    each_with_result(r, function() found = true end)
    return found
  end

  -- Return the kinds under which a bundle is named, each with the name of the flow, and how many of its items were acked.
  local function named_as(r)
    local as, name, held_for, opens = {}, flows.of(r), flows.held_for(r)
    local is_held = held_for and flows.is_held(r)
    local acked, missed = gone_of(r)
    if name then
      for kind, states in pairs(LIVING) do
        if (not is_held or opens == flows.NESTED) and string.find(r.states, states) then as[kind .. name] = true end
      end
      if missed then as['M' .. name] = true end
      if r.own ~= '' and has_result(r) then as['R' .. name] = true end
    end
    if is_held then as[HELD_AS[opens] .. held_for] = true end
    if is_held and name and opens == flows.NESTED then as[flows.NESTED .. name] = true end
    return as, acked
  end

  -- Write what follows from the difference between a bundle as it is stored and as it is now.
  function flows.index(b, r)
    local was, acked_before = {}, 0
    if b.fields ~= '' then was, acked_before = named_as(b) end
    local is, acked = named_as(r)
    for named in pairs(is) do
      if b.is_lost or not was[named] then append(entering, members, '0', entry(named, '', r.bundle)) end
    end
    for named in pairs(was) do
      if not is[named] then append(leaving, members, entry(named, '', r.bundle)) end
    end
    local name, held_for = flows.of(r), flows.held_for(r)
    for kind, of in pairs(b.is_lost and {L = name, D = name, M = name, R = name, N = name, I = name, V = held_for, W = held_for} or {}) do
      if not is[kind .. of] then append(leaving, members, entry(kind, of, r.bundle)) end
    end
    if name and flows.is_named(r.bundle, name) and not string.find(r.states, ALIVE) then
      order.named = order.named or {}
      order.named[name] = true
    end
    if name then flows.note_ended(name, was, is, acked - acked_before) end
  end

  -- Note that members have been acked, and that something may be decided about their flow: none of them lives, or one is a dead
  -- letter or was removed otherwise.
  function flows.note_ended(name, was, is, acked)
    local has_ended = false
    for kind in pairs(ENDING) do has_ended = has_ended or is[kind .. name] ~= was[kind .. name] end
    if not has_ended and acked == 0 then return end
    order.flows, order.acked = order.flows or {}, order.acked or {}
    order.flows[name], order.acked[name] = true, (order.acked[name] or 0) + acked
  end

  -- Return how many members were acked, as far as is known here.
  function flows.done(name)
    return tonumber(redis.call('HGET', lead, DONE .. name) or 0) or 0
  end

  -- Count those that were acked.
  function flows.count_acked()
    for name, acked in pairs(order.acked) do
      local flow = acked ~= 0 and open(flows.id(name))
      if flow and flow.states == 'P' then append(new, 'numbers', DONE .. name, text_of(flows.done(name) + acked)) end
    end
    order.acked = nil
  end

  -- The same of the record of a flow.
  function flows.index_itself(b, r)
    local name, runs = string.sub(r.bundle, #RECORD + 1), r.states == 'P'
    local is, was = runs and 'P' or 'E', runs and 'E' or 'P'
    if b.is_lost or b.states == '' or (b.states == 'P') ~= runs then
      append(entering, members, '0', entry(is, name, ''))
      append(leaving, members, entry(was, name, ''))
    end
    if not runs then append(new, 'old_numbers', DONE .. name) end
  end

  -- Tell whether a bundle has a name in its flow, for which others may wait if it is that of one item.
  function flows.is_named(bundle, name)
    local short = string.match(name, '[^/]*$') .. '.'
    return string.sub(bundle, 1, #short) == short or string.sub(bundle, 1, #MARK + #short) == MARK .. short
  end

  function flows.is_itself(bundle)
    return string.sub(bundle, 1, #RECORD) == RECORD
  end

  -- Return the entries that the record of a bundle asks for and that are missing.
  function flows.missing(r)
    local missing = {}
    local function look_for(each)
      if not redis.call('ZSCORE', members, each) then missing[#missing + 1] = each end
    end
    if flows.is_itself(r.bundle) then
      look_for(entry(r.states == 'P' and 'P' or 'E', string.sub(r.bundle, #RECORD + 1), ''))
    elseif r.fields ~= '' then
      for named in pairs(named_as(r)) do look_for(entry(named, '', r.bundle)) end
    end
    return missing
  end

  -- Tell whether there is any entry.
  function flows.any()
    return redis.call('ZRANGEBYLEX', members, '[' .. places.FLOWS, '(' .. places.RESTING, 'LIMIT', 0, 1)[1] ~= nil
  end

  -- Return which of the next entries, at most as many, no record asks for, and the last one, nil at the end.
  -- cursor: the entry behind which they begin; 0: with the first one.
  function flows.wrong(cursor, most)
    local from = cursor == '0' and '[' .. places.FLOWS or '(' .. cursor
    local found = redis.call('ZRANGEBYLEX', members, from, '(' .. places.RESTING, 'LIMIT', 0, most)
    local bundles, kinds, wrong = {}, {}, {}
    for i, each in ipairs(found) do
      local kind, name, bundle = string.match(each, '^.(%a)(%Z*)%z(.*)$')
      kinds[i] = kind and kind .. name or ''
      bundles[i] = (kind == 'P' or kind == 'E') and bundle == '' and flows.id(name) or bundle or ''
    end
    for i, packed in ipairs(found[1] and redis.call('HMGET', records, unpack(bundles)) or {}) do
      local r, is_named = packed and open(bundles[i], packed), false
      if r and flows.is_itself(r.bundle) then
        is_named = string.sub(kinds[i], 1, 1) == (r.states == 'P' and 'P' or 'E')
      elseif r then
        is_named = r.fields ~= '' and named_as(r)[kinds[i]] ~= nil
      end
      if not is_named and (r or not packed) then wrong[#wrong + 1] = found[i] end
    end
    return wrong, found[most]
  end

  -- Note a plain push of members, of which nothing was known.
  function flows.begin_living(r)
    append(entering, members, '0', entry('L', flows.of(r), r.bundle))
  end

  -- -- the flow itself -----------------------------------------------------------------------------------------------

  -- Return what the text of a flow's record says; its legs are separated by spaces.
  function flows.read(flow)
    local stage, stamp, keep_ms, policy, outcome, legs = string.match(flow.tail, '^(%u) (%d+) (%d+) %.(%l*) (%S*) ?(.*)$')
    return {stage = stage or 'O', stamp = tonumber(stamp or 0), keep_ms = tonumber(keep_ms or 0), policy = policy or '',
      outcome = outcome or '', legs = legs or ''}
  end

  function flows.say(flow, says)
    touch(flow)
    flow.tail = string.format('%s %.0f %.0f .%s %s %s', says.stage, says.stamp, says.keep_ms, says.policy, says.outcome, says.legs)
  end

  -- Return the record of a flow, and how far it is: U unknown, O open, S sealed, F failing, E ended.
  function flows.stage_of(name)
    local flow = open(flows.id(name))
    if not flow or flow.states ~= 'P' and is_expired(flow, 0) then return flow, 'U' end
    if flow.states ~= 'P' then return flow, 'E' end
    return flow, flows.read(flow).stage
  end

  -- Tell whether a flow takes members.
  function flows.runs(name)
    local _, stage = flows.stage_of(name)
    return stage == 'O' or stage == 'S'
  end

  -- Return the queues of the legs of a flow, also of one that is closed.
  function flows.legs(flow)
    local legs = {}
    local text = flow and (flow.states == 'P' and flows.read(flow).legs or tails.field(flow, LEGS)) or ''
    for each in string.gmatch(text, '%S+') do legs[#legs + 1] = each end
    return legs
  end

  -- A flow that begins has none, and this outer flow, '' without one; an earlier one of its name may have had others.
  function flows.begin_fields(flow, outer)
    tails.set_field(flow, LEGS, '')
    tails.set_field(flow, flows.OUTER, outer)
  end

  -- Return the flow of which a flow is a member, '' without one.
  function flows.outer(flow)
    return flow and flow.fields ~= '' and tails.field(flow, flows.OUTER) or ''
  end

  -- Return the outcome of a flow that has ended, and, for people, how many members were acked, dead and missed then.
  function flows.outcome(flow)
    local text = flow.states == 'P' and flows.read(flow).outcome or ''
    if flow.states ~= 'P' then
      local row = string.byte(flow.named) - NONE
      text = row > 0 and string.sub((row_at(flow, row)), 1 + #OUTCOME) or ''
    end
    local outcome, done, died, missed = string.match(text, '^(%a*),?(%d*),?(%d*),?(%d*)')
    return outcome, tonumber(done) or 0, tonumber(died) or 0, tonumber(missed) or 0
  end

  -- Nothing is left to do about a flow that has ended: it is a tombstone.
  function flows.close(flow)
    touch(flow)
    local says = flows.read(flow)
    flow.tail, flow.due, flow.has_no_text = '', now_us, true
    tails.set_field(flow, LEGS, says.legs)
    set_own(flow, 1, now_us, math.min(says.keep_ms, KEEP_MAX_MS))
    set(flow, 1, 1, GONE, rowset.of_call(flow, OUTCOME .. says.outcome))
  end

  -- Tell whether a flow has to fail: its deadline has passed, or its maker has not kept it open.
  function flows.is_late(flow, says)
    if string.find(says.policy, 'd', 1, true) and flow.due + flow.shift <= now_us then return true end
    local moment = own_of(flow, 1)
    return says.stage == 'O' and moment ~= nil and moment + flow.shift <= now_us
  end

  -- Tell whether a decision lets a member come to life, or wait for others.
  local function has_come(r, name)
    local was, is = r.before and r.before.fields ~= '' and named_as(r.before) or {}, named_as(r)
    for _, kind in ipairs(COMING) do
      if is[kind .. name] and not was[kind .. name] then return true end
    end
    return false
  end

  -- A decision by which a member comes to life raises the stamp of its flow; order.has_flows: some that were decided have one.
  function flows.raise_stamps()
    for _, r in ipairs(order) do
      local name = r.decided and r.changed and flows.of(r)
      if name and has_come(r, name) then
        local flow, stage = flows.stage_of(name)
        if stage == 'O' or stage == 'S' or stage == 'F' then
          local says = flows.read(flow)
          says.stamp = says.stamp + 1
          flows.say(flow, says)
        end
      end
    end
  end

  -- -- what is left of one -------------------------------------------------------------------------------------------

  -- Call visit(r) with bundles that are named under a kind, until it returns true; those that no longer are cost nothing but time.
  -- page: how many are read in one command; nil: PAGE.  after: the bundle behind which they begin.
  function flows.each_named(kind, name, visit, page, after)
    page = page or PAGE
    local from, behind = (after and '(' or '[') .. entry(kind, name, after or ''), '(' .. places.FLOWS .. kind .. name .. '\1'
    repeat
      local found = redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, page)
      local bundles = {}
      for i, named in ipairs(found) do bundles[i] = string.sub(named, #entry(kind, name, '') + 1) end
      for i, packed in ipairs(found[1] and redis.call('HMGET', records, unpack(bundles)) or {}) do
        local r = packed and open(bundles[i], packed)
        if r and r.fields ~= '' and named_as(r)[kind .. name] and visit(r) then return end
      end
      from = found[page] and '(' .. found[page]
    until not from
  end

  -- Tell whether a bundle is named under a kind.
  local function has(kind, name)
    local found = false
    flows.each_named(kind, name, function()
      found = true
      return true
    end, FEW)
    return found
  end

  -- Return the letters of what is left of a flow here.
  function flows.kinds(name)
    local letters = ''
    for _, kind in ipairs(LEFT) do
      if has(kind, name) then letters = letters .. kind end
    end
    return letters
  end

  -- Return how many items there are of a kind, L, N, D or M, and append the kinds and ids of the first ones to a list, at most as
  -- many, each with the inner flow for which it stands, '' for none.
  function flows.count(kind, name, most, ids)
    local count, looked_at = 0, 0
    flows.each_named(kind, name, function(r)
      looked_at = looked_at + 1
      local function add(from, to)
        for position = from, math.min(to, from + most - count - 1) do
          local n = #ids
          ids[n + 1], ids[n + 2], ids[n + 3] = kind, id_of(r.bundle, r, position), flows.nested(r) or ''
        end
        count = count + to - from + 1
      end
      if kind == 'M' then
        each_gone(r, function(from, to, is_acked)
          if not is_acked then add(from, to) end
        end)
      else
        local states = (LIVING[kind] or LIVING.L) .. '+'
        local from, to = string.find(r.states, states)
        while from do
          add(from, to)
          from, to = string.find(r.states, states, to + 1)
        end
      end
      return looked_at >= LOOKED_MAX
    end)
    if looked_at < LOOKED_MAX then return count end
    local all = redis.call('ZLEXCOUNT', members, '[' .. entry(kind, name, ''), '(' .. places.FLOWS .. kind .. name .. '\1')
    return math.max(count, math.floor(count * all / looked_at))
  end

  -- Tell whether somebody should look at a flow: something may be decided about it, or opened.
  -- has_kind: tells whether something is there of a kind; nil: looks for it.  may_open: a member may be acked for which others wait.
  function flows.is_due(name, has_kind, may_open)
    has_kind = has_kind or has
    local flow, stage = flows.stage_of(name)
    if stage == 'U' or stage == 'E' or stage == 'F' then return true end
    local says = flows.read(flow)
    if flows.is_late(flow, says) then return true end
    if may_open and string.find(says.policy, 'w', 1, true) then return true end
    if string.find(says.policy, 'f', 1, true) and (has_kind('D', name) or has_kind('M', name)) then return true end
    return (stage == 'S' or string.find(says.policy, 'l', 1, true) ~= nil) and not has_kind('L', name)
  end

  -- Return the flows of whose members this call has ended some, and that are due, after they were written; nil: none.
  function flows.due()
    if not order.flows then return nil end
    local names = {}
    for name in pairs(order.flows) do
      local flow = open(flows.id(name))
      if flow and flow.states == 'P' and flows.is_due(name, nil, order.named and order.named[name]) then names[#names + 1] = name end
    end
    return names[1] and names or nil
  end

  -- Return what has become of a bundle that is known by its name in a flow: U it is not known, L an item of it lives, or is not here
  -- any more, D one is a dead letter, M one was removed otherwise than by an ack, A all were acked.
  function flows.state_of(bundle)
    local r = open(bundle)
    if not r or not string.find(r.states, '[^F]') then return 'U' end
    if string.find(r.states, '[QRC]') or places.has_left(r, 1) then return 'L' end
    return string.find(r.states, 'D', 1, true) and 'D' or has_missed(r) and 'M' or 'A'
  end

  -- Return what is held for a flow, at most as many.
  function flows.held(name, most)
    local held = {}
    for _, kind in ipairs(HOLDING) do
      if #held < most then
        flows.each_named(kind, name, function(r)
          held[#held + 1] = r
          return #held >= most
        end)
      end
    end
    return held
  end

  function flows.has_nested(name)
    return has(flows.NESTED, name)
  end

  -- End what stands for a flow as that has ended: acked, a dead letter, or removed.
  function flows.end_nested(r, outcome)
    local OWNER = 'flow ' -- before the name of the flow, where others have the consumer that has acked
    local inner = flows.nested(r)
    if outcome == 'done' then
      remove(r, 1, 1, rowset.add(r, OWNER .. inner, 1, 1, now_us + 1000))
    elseif outcome == 'failed' then
      local queue, name = string.match(inner, '^([^/]*)/?(.*)$')
      bury(r, 1, 1, string.format("flow '%s' of queue '%s' has failed", name, queue), 0)
    else
      remove(r, 1, 1, 0)
    end
  end

  -- Return at most as many flows that are named under kinds without a bundle, or for which something is held (V, W), each once of
  -- each kind; cursor: the kind and the name after which they begin.  kinds: in their order.  Return also the last one, nil at the
  -- end.  Those of which the outcome is not kept any more are left out.
  function flows.named(cursor, most, kinds)
    local names, looked_at = {}, 0
    for kind in string.gmatch(kinds, '%u') do
      local last = string.sub(cursor, 1, 1)
      if last <= kind then
        local from = '[' .. places.FLOWS .. (last == kind and cursor .. '\1' or kind)
        while looked_at < most do
          local named = redis.call('ZRANGEBYLEX', members, from, '(' .. places.FLOWS .. string.char(string.byte(kind) + 1), 'LIMIT', 0, 1)[1]
          if not named then break end
          looked_at, cursor = looked_at + 1, string.match(named, '^.(%a%Z*)') or kind
          local flow, stage = flows.stage_of(string.sub(cursor, 2))
          local is_named = kind ~= 'P' and stage == 'E' and flow.states == 'P'
          if not is_named and (kind ~= 'E' or stage == 'E') then names[#names + 1] = string.sub(cursor, 2) end
          from = '[' .. places.FLOWS .. cursor .. '\1'
        end
        if looked_at >= most then return names, cursor end
      end
    end
    return names, nil
  end

  local function is_running(name)
    local _, stage = flows.stage_of(name)
    return stage == 'O' or stage == 'S' or stage == 'F'
  end

  -- Tell whether the tombstone of a bundle is needed while its flow runs: one was removed otherwise than by an ack, or others may wait
  -- for it by its name.
  function flows.needs(r)
    local name = flows.of(r)
    local has_name = flows.is_named(r.bundle, name)
    if not has_name and not has_missed(r) or not is_running(name) then return false end
    return has_missed(r) or string.find(flows.read((flows.stage_of(name))).policy, 'w', 1, true) ~= nil
  end

  -- Tell whether a tombstone counts for as long as its flow runs, unless the bytes of tombstones do not suffice: it has a name there,
  -- and no push under that name begins a new life meanwhile.
  function flows.keeps_name(r)
    local name = flows.of(r)
    return name ~= nil and flows.is_named(r.bundle, name) and is_running(name)
  end

  -- Tell whether the results of a bundle are kept beyond their time: its flow runs, or its outcome is still kept.
  function flows.keeps_results(r)
    local name = flows.of(r)
    return name ~= nil and has_result(r) and select(2, flows.stage_of(name)) ~= 'U'
  end

  -- Call visit(r, positions) with bundles of members that have results, in the order of their ids, until it returns true.
  -- after: the bundle behind which they begin, nil: with the first one.
  function flows.each_with_results(name, after, visit)
    flows.each_named('R', name, function(r)
      local positions = {}
      each_with_result(r, function(position) positions[#positions + 1] = position end)
      return visit(r, positions)
    end, PAGE, after)
  end

  -- Take a tombstone that is dropped out of the index: append what names it.
  function flows.append_dropped(entries, r)
    if flows.is_itself(r.bundle) then append(entries, members, entry('E', string.sub(r.bundle, #RECORD + 1), '')) end
    if not flows.of(r) then return end
    for _, kind in ipairs(DROPPED) do append(entries, members, entry(kind, flows.of(r), r.bundle)) end
  end
end
