-- purpose: settle claimed items: what settle.lua does to the rows of its call, and turn.lua before it claims.
local settle_rows
do
  local function queue_again(r, position, moment, failures)
    set_own(r, position, moment, failures)
    set(r, position, position, REQUEUED)
  end

  local function fail(r, from, to, row, ms, text)
    local took_us = now_us - began_at(r, row)
    for position = from, to do
      failing.add(r, position, text, took_us)
      local _, failures = own_of(r, position)
      queue_again(r, position, now_us + ms * 1000, failures + 1)
    end
  end

  local function extend(r, from, to, row, ms)
    local owner, seq = row_at(r, row)
    local _, others = string.gsub(r.named, string.char(row + NONE), '')
    note_beginning(r, row)
    if others == to - from + 1 then
      rowset.set(r, row, ms, now_us + ms * 1000)
    else
      set(r, from, to, CLAIMED, rowset.add(r, owner, seq, ms, now_us + ms * 1000))
    end
    r.soonest = math.min(r.soonest, now_us + ms * 1000)
  end

  -- Tell whether a save is late: a first try may be executed after its repetition, and after the saves that followed that.
  local function is_late(r, position, text)
    return beside.read_save(text) < (tails.save_of(r, position) or 0)
  end

  -- Save the state of items, and extend their lease unless ms is 0.  text: number of the save within the claim, 1 if the
  -- attempts begin anew, state.
  local function save(r, from, to, row, ms, text)
    local number_of_save, anew, at = beside.read_save(text)
    local state = string.sub(text, at)
    if ms > 0 then extend(r, from, to, row, ms) end
    for position = from, to do
      tails.set_save(r, position, number_of_save)
      beside.save(r, position, state)
      local moment = own_of(r, position)
      if anew then count_attempts(r, position, position, 1 - attempts_at(r, position)) end
      if anew and moment then set_own(r, position, moment, 0) end
    end
  end

  local VERBS = {
    ack = {became = 'X', settle = function(r, from, to, _, ms, text)
      remove(r, from, to)
      if ms then results.keep(r, from, to, ms, text) end
    end},
    nack = {became = '[QR]', settle = function(r, from, to, row, ms, text)
      fail(r, from, to, row, ms, text)
      if places.is_ordered(r) then r.order = math.abs(r.order) end
    end},
    -- The same, but the item does not hold its group while it waits (_groups.lua).
    pass = {became = '[QR]', settle = function(r, from, to, row, ms, text)
      fail(r, from, to, row, ms, text)
      if places.is_ordered(r) then r.order = -math.abs(r.order) end
    end},
    release = {became = '[QR]', settle = function(r, from, to)
      count_attempts(r, from, to, -1)
      requeue(r, from, to)
    end},
    -- Later, and not counted; it holds its group meanwhile, because it is first in it and has not been done.
    snooze = {became = '[QR]', settle = function(r, from, to, _, ms)
      count_attempts(r, from, to, -1)
      for position = from, to do
        local _, failures = own_of(r, position)
        queue_again(r, position, now_us + ms * 1000, failures)
      end
      if places.is_ordered(r) then r.order = math.abs(r.order) end
    end},
    bury = {became = 'D', settle = function(r, from, to, row, _, text) bury(r, from, to, text, nil, row) end},
    extend = {became = 'C', settle = extend},
    save = {became = 'C', settle = save, is_late = is_late},
  }

  -- A repeated failure is sent with its reason again.
  local function recall(r, position)
    local text = redis.call('HGET', notes, entry_of(r, position))
    if text then note(r, position, text) end
  end

  -- Settle the items of a run; return the positions of those whose claims are lost.
  local function settle(r, from, to, token, verb, ms, text, next_token)
    local lost = {}
    each_run(r, from, to, function(run_from, run_to, state, row)
      local is_mine = row > 0 and token_at(r, row) == token
      if state == CLAIMED and is_mine and verb.is_late and verb.is_late(r, run_from, text) then
        tell_as_is(r)
      elseif state == CLAIMED and is_mine then
        touch(r)
        verb.settle(r, run_from, run_to, row, ms, text)
      elseif is_mine and string.find(string.char(state), verb.became) then
        for position = run_from, run_to do
          if ms and state == GONE then results.complete(r, position, token, text) end
          recall(r, position)
        end
        tell_as_is(r)
      elseif state == CLAIMED and row > 0 and verb.became == '[QR]' and token_at(r, row) == next_token then
        tell_as_is(r)
      else
        for position = run_from, run_to do lost[#lost + 1] = string.char(position - 1) end
        tell_as_is(r)
      end
    end)
    return table.concat(lost)
  end

  -- Settle what ARGV names between two indexes: id, items, version, token and how of each.  Return the positions of the
  -- items whose claim is lost, for each; and whether some are buried, after which drop_dead_letters is due.
  -- next_token: of the claim request in the same turn, or nil.  It may be given an item that is queued again here; then a
  -- repeated turn finds that claimed once more, and its settlement was done.
  function settle_rows(from_arg, to_arg, next_token)
    local bundles, outcomes, buries = {}, {}, false
    for i = from_arg, to_arg, 5 do bundles[#bundles + 1] = ARGV[i] end
    local held = redis.call('HMGET', records, unpack(bundles))
    for i, bundle in ipairs(bundles) do
      local items, version, token, how = unpack(ARGV, from_arg + 5 * i - 4, from_arg + 5 * i - 1)
      local name, ms, text = string.match(how, '^(%a+) (%d+) (.*)$')
      local verb, r, lost = VERBS[name or how], open(bundle, held[i]), {}
      local named_epoch, named_n = struct.unpack('<I4I4', version)
      if r and newer({epoch = named_epoch, n = named_n}, r) then token = '' end
      if name == 'save' and not beside.read_save(text) then token = '' end -- of no client: nothing of it is written
      for at = 1, #items, 2 do
        local from, to = string.byte(items, at) + 1, string.byte(items, at + 1) + 1
        if not r or to > r.size then
          for position = from, to do lost[#lost + 1] = string.char(position - 1) end
        else
          lost[#lost + 1] = settle(r, from, to, token, verb, tonumber(ms), text or '', next_token)
        end
      end
      outcomes[i] = table.concat(lost)
      buries = buries or name == 'bury'
    end
    return outcomes, buries
  end
end
