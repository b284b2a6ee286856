-- purpose: keep what is known of flows: of each the bundles of its members that live, that have a dead letter, or of which an
-- item was removed otherwise than by an ack, and what is held until it ends (zkrq/protocol/flows.py).
-- members names them, behind all groups, by a byte that no group begins with: that byte, kind, flow, zero byte, bundle.
-- All of it follows from the records, so each server has it; readers check the record of what they find.
-- kind: L an item is queued or claimed; D one is a dead letter; M one was removed otherwise; W one is held. P, without a
-- bundle: the flow itself runs.
-- The record of a flow is in state P while it runs; its tail says whether it is sealed (1), its stamp, and for how many
-- milliseconds its outcome is kept. Then it is a tombstone that is kept for as long, whose row names the outcome, as one of
-- the window of a key is (push_decided.lua).
local flows = {} -- one name for all, because Lua allows 200 in a library
do
  local RECORD = '\1flow ' -- before the name of a flow
  local MEMBER, HELD = 'F', 'W' -- kinds of fields in a record
  local OUTCOME = '=' -- before the outcome in a row
  local HOLDS_UP = {'L', 'D', 'M'}
  local PAGE = 100 -- entries looked at in one command

  function flows.id(name)
    return RECORD .. name
  end

  local function entry(kind, name, bundle)
    return places.FLOWS .. kind .. name .. '\0' .. bundle
  end

  -- Return the flow of which the items of a bundle are members, nil without one.
  function flows.of(r)
    return r.fields ~= '' and tails.field(r, MEMBER) or nil
  end

  -- Return the flow for whose end an item was held, nil without one.
  function flows.held_for(r)
    return r.fields ~= '' and tails.field(r, HELD) or nil
  end

  -- Tell whether an item waits for the end of its flow: it is queued for a moment that never comes.
  function flows.is_held(r)
    if not flows.held_for(r) or string.byte(r.states) ~= REQUEUED then return false end
    local moment = own_of(r, 1)
    return moment + r.shift >= places.NEVER_US
  end

  -- Tell whether a member was removed otherwise than by an ack.
  local function has_missed(r)
    if not string.find(r.states, 'X', 1, true) then return false end
    local found = false
    each_run(r, 1, r.size, function(from, _, state, row)
      if state == GONE and (row == 0 or select(2, row_at(r, row)) == 0) and not places.has_left(r, from) then found = true end
    end)
    return found
  end

  -- Return the kinds under which a bundle is named, and the flow; nil without one.
  local function kinds_of(r)
    local name = flows.of(r)
    if name then
      return {L = string.find(r.states, '[QRC]') ~= nil, D = string.find(r.states, 'D', 1, true) ~= nil, M = has_missed(r)}, name
    end
    return {W = flows.is_held(r)}, flows.held_for(r)
  end

  -- Write what follows from the difference between a bundle as it is stored and as it is now.
  function flows.index(b, r)
    local was, old_name = {}, nil
    if b.fields ~= '' then was, old_name = kinds_of(b) end
    local is, name = kinds_of(r)
    if old_name ~= name then
      for kind, named in pairs(was) do
        if named then append(leaving, members, entry(kind, old_name, r.bundle)) end
      end
      was = {}
    end
    if not name then return end
    for kind, named in pairs(is) do
      if named and (b.is_lost or not was[kind]) then
        append(entering, members, '0', entry(kind, name, r.bundle))
      elseif not named and (b.is_lost or was[kind]) then
        append(leaving, members, entry(kind, name, r.bundle))
      end
    end
  end

  -- The same of the record of a flow.
  function flows.index_itself(b, r)
    local name, runs = string.sub(r.bundle, #RECORD + 1), r.states == 'P'
    if runs and (b.is_lost or b.states ~= 'P') then
      append(entering, members, '0', entry('P', name, ''))
    elseif not runs then
      append(leaving, members, entry('P', name, ''))
    end
  end

  function flows.is_itself(bundle)
    return string.sub(bundle, 1, #RECORD) == RECORD
  end

  -- Note a plain push of members, of which nothing was known.
  function flows.begin_living(r)
    append(entering, members, '0', entry('L', flows.of(r), r.bundle))
  end

  -- Return the record of a flow, and how far it is: U unknown, O open, S sealed, E ended.
  function flows.stage_of(name)
    local flow = open(flows.id(name))
    if not flow or flow.states ~= 'P' and is_expired(flow, 0) then return flow, 'U' end
    if flow.states ~= 'P' then return flow, 'E' end
    return flow, string.byte(flow.tail) == 49 and 'S' or 'O'
  end

  -- Tell whether a flow runs.
  function flows.runs(name)
    local _, stage = flows.stage_of(name)
    return stage == 'O' or stage == 'S'
  end

  -- Return whether a flow that runs is sealed (1, 0), its stamp, and for how many milliseconds its outcome is kept.
  function flows.read(flow)
    local sealed, stamp, keep_ms = string.match(flow.tail, '^(%d) (%d+) (%d+)$')
    return sealed or '0', tonumber(stamp or 0), tonumber(keep_ms or 0)
  end

  function flows.keep(flow, sealed, stamp, keep_ms)
    flow.tail = string.format('%s %.0f %.0f', sealed, stamp, keep_ms)
  end

  function flows.outcome(flow)
    local row = string.byte(flow.named) - NONE
    return row > 0 and string.sub((row_at(flow, row)), 1 + #OUTCOME) or ''
  end

  function flows.finish(flow, outcome)
    local _, _, keep_ms = flows.read(flow)
    flow.tail, flow.due, flow.has_no_text = '', now_us, true
    set_own(flow, 1, now_us, keep_ms)
    set(flow, 1, 1, GONE, row_of_call(flow, OUTCOME .. outcome))
  end

  -- A decision by which a member comes to life raises the stamp of its flow; order.has_flows: some that were decided have one.
  function flows.raise_stamps()
    for _, r in ipairs(order) do
      local name = r.decided and r.changed and flows.of(r)
      if name and string.find(r.states, '[QRC]') and not (r.before and string.find(r.before.states, '[QRC]')) then
        local flow, stage = flows.stage_of(name)
        if stage == 'O' or stage == 'S' then
          touch(flow)
          local sealed, stamp, keep_ms = flows.read(flow)
          flows.keep(flow, sealed, stamp + 1, keep_ms)
        end
      end
    end
  end

  -- Call visit(r) with bundles that are named under a kind, until it returns true; those that no longer are cost nothing but time.
  local function each_named(kind, name, visit)
    local from, behind = '[' .. entry(kind, name, ''), '(' .. places.FLOWS .. kind .. name .. '\1'
    repeat
      local found = redis.call('ZRANGEBYLEX', members, from, behind, 'LIMIT', 0, PAGE)
      local bundles = {}
      for i, named in ipairs(found) do bundles[i] = string.sub(named, #entry(kind, name, '') + 1) end
      for i, packed in ipairs(found[1] and redis.call('HMGET', records, unpack(bundles)) or {}) do
        local r = packed and open(bundles[i], packed)
        if r and r.fields ~= '' then
          local kinds, of = kinds_of(r)
          if of == name and kinds[kind] and visit(r) then return end
        end
      end
      from = found[PAGE] and '(' .. found[PAGE]
    until not from
  end

  -- Return the letters of what is left of a flow here, and bundles that hold it up, at most as many.
  function flows.left(name, most)
    local letters, bundles, seen = '', {}, {}
    for _, kind in ipairs(HOLDS_UP) do
      local found = false
      each_named(kind, name, function(r)
        found = true
        if not seen[r.bundle] and #bundles < most then seen[r.bundle], bundles[#bundles + 1] = true, r.bundle end
        return #bundles >= most
      end)
      if found then letters = letters .. kind end
    end
    each_named('W', name, function()
      letters = letters .. 'W'
      return true
    end)
    return letters, bundles
  end

  -- Return what is held for a flow, at most as many.
  function flows.held(name, most)
    local held = {}
    each_named('W', name, function(r)
      held[#held + 1] = r
      return #held >= most
    end)
    return held
  end

  -- Return at most as many flows that run (kind P), or for which something is held (W), each once; cursor: the kind and the
  -- name after which they begin.  Return also the last one, nil at the end.
  function flows.named(cursor, most)
    local from = '[' .. places.FLOWS .. (cursor == '' and 'P' or cursor .. '\1')
    local names = {}
    while #names < most do
      local named = redis.call('ZRANGEBYLEX', members, from, '(' .. places.FLOWS .. 'X', 'LIMIT', 0, 1)[1]
      if not named then return names, nil end
      cursor = string.match(named, '^.(%a%Z*)') or ''
      names[#names + 1] = string.sub(cursor, 2)
      from = '[' .. places.FLOWS .. cursor .. '\1'
    end
    return names, cursor
  end

  -- Tell whether the tombstone of a bundle is needed: one was removed otherwise than by an ack, and its flow runs.
  function flows.needs(r)
    return has_missed(r) and flows.runs(flows.of(r))
  end

  -- Return what names a tombstone that is dropped.
  function flows.entry_of_missed(r)
    return entry('M', flows.of(r), r.bundle)
  end
end
