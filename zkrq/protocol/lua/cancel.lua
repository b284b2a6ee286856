#!lua flags=allow-oom
-- purpose: decide the removal of items: the named ones, or, if none is named, the count that died first.
-- wanted: the state that they must be in, empty: any.  The holder of a claimed one is notified (_wake.lua).
-- call: id of this call (_calls.lua).  A tombstone's token says in which state the call found the item, so that a
-- repetition reports the same.  An item that is already gone is reported too, since only this server may know of its
-- removal.
-- KEYS: server records payloads ready scheduled claimed holdings dead tombstones keys expiring lead waiting
-- ARGV: epoch generation put_window_ms trim wanted count call / id
-- reply: OK [state; of each before this call, empty for an unknown one] [id record left_ms; of each that is gone]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- include: gate clock record index wake tombstones reply calls
local states, ids = {}, {}
for i = first, #ARGV do ids[#ids + 1] = ARGV[i] end
local named = ids[1] ~= nil
local executed_before = not named and was_executed(call)
if executed_before then
  ids = items_of(call)
elseif not named and tonumber(count) > 0 then
  ids = redis.call('ZRANGE', dead, 0, count - 1)
end
for _, id in ipairs(ids) do
  local packed = not position_of[id] and redis.call('HGET', records, id)
  local r = packed and not is_expired(packed, now_us, put_window_ms) and read_record(packed)
  states[#states + 1] = r and r.state or ''
  if r and r.state == 'X' and (named or executed_before) then
    if call ~= '' and string.sub(r.token, 2) == call then states[#states] = string.sub(r.token, 1, 1) end
    tell_as_is(id, packed, r)
  elseif executed_before then
    states[#states] = '' -- another life of the id, or a late first try: no longer this call's item
  elseif r and HAS_PAYLOAD[r.state] and (wanted == '' or r.state == wanted) then
    if r.state == 'C' then tell_cancelled(id, r.token) end
    decide(id, r, 'X', call ~= '' and r.state .. call or '', now_us)
  elseif not named and not position_of[id] then
    redis.call('ZREM', dead, id)
  end
end
commit()
if not named and not executed_before then remember_items(call, ids) end
if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
return {'OK', states, decided}
