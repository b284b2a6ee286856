#!lua flags=allow-oom
-- purpose: decide the removal of items: the named ones, or, if none is named, the count that died first.
-- wanted: the state that they must be in, empty: any; M: queued, and another shard has adopted them (adopt.lua), which their
-- rows say from then on.  The holder of a claimed one is notified (_wake.lua).
-- call: id of this call (_calls.lua).  A removed item names it, and the state in which the call found the item, so that
-- a repetition reports the same.  An item that is already gone is reported too, since only this server may know of its
-- removal.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation put_window_ms trim wanted count call / id
-- reply: OK [state; of each before this call, empty for an unknown one, M for one that is on another shard now] [id record notes since; of each bundle concerned]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, trim, wanted, count, call)
  local states, named = {}, first <= last
  local is_move = wanted == places.MOVED
  local executed_before = not named and was_executed(call)
  local ids = executed_before and items_of(call) or {}
  for i = first, last do ids[#ids + 1] = ARGV[i] end
  if not named and not executed_before and tonumber(count) > 0 then
    each_in(dead, redis.call('ZRANGE', dead, 0, count - 1), 'D', 'D', function(r, position)
      ids[#ids + 1] = id_of(r.bundle, r, position)
    end)
  end

  -- Queued with its bundle or by itself, and refused or removed, are the same to the caller.
  local STATE_NAMES = {R = 'Q', F = 'X'}

  local function cancel(id)
    local bundle, position = stored_at(id)
    local r = open(bundle)
    if not r or position > r.size or is_expired(r, put_window_ms) then return '' end
    local state, row = string.sub(r.states, position, position), string.byte(r.named, position) - NONE
    state = STATE_NAMES[state] or state
    if state == 'X' and (named or executed_before) then
      local token = row > 0 and token_at(r, row) or ''
      tell_as_is(r)
      if places.has_left(r, position) then return places.MOVED end
      if call ~= '' and string.sub(token, 2) == call then return string.sub(token, 1, 1) end
    elseif executed_before then
      return '' -- another life of the id, or a late first try: no longer this call's item
    elseif string.find(state, '[QCD]') and (wanted == '' or state == wanted or is_move and state == 'Q') then
      if state == 'C' then tell_cancelled(id, token_at(r, row)) end
      touch(r)
      remove(r, position, position, call ~= '' and rowset.of_call(r, (is_move and wanted or state) .. call) or 0)
    end
    return state
  end

  for _, id in ipairs(ids) do states[#states + 1] = cancel(id) end
  commit()
  wake(readied) -- for slots that are free now
  if not named and not executed_before then remember_items(call, ids) end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', states, decisions()}
end
