#!lua flags=allow-oom
-- purpose: decide one section of the queue's limits (_limits.lua): a record like an item's has them, and is replicated like
-- one.
-- settings: of this section, name=value,name=value; empty: none from now on.  The other sections stay as they are.
-- mark: names what a program declares; empty: an operator does.  What was declared before changes nothing.
-- forced: 1: it does, because the shard that the others follow has decided so.
-- call: id of this call; one that was executed here does nothing (_calls.lua).
-- replaced: = and the settings of the section that the client has read: where others are there by now, nothing changes;
-- empty: whatever is there.
-- before, now: the settings of the section before this call, and after it.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue section settings mark forced call replaced
-- reply: OK before now [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, section, settings, mark, forced, call, replaced)
  local r = open(LIMITS)
  local known = r ~= nil
  if not r then r = begin_itself(LIMITS) end
  local before = limits.section(r.tail, section)
  local text = r.tail
  if not was_executed(call) and (replaced == '' or replaced == '=' .. before) then text = limits.declared(text, section, settings, mark, forced == '1') end
  if r.tail ~= text then
    touch(r)
    r.tail, r.states = text, text == '' and 'X' or 'P'
  elseif known then
    tell_as_is(r)
  end
  if r.decided then list_queue(queue) end
  commit()
  if r.decided then wake(math.huge) end
  return {'OK', before, limits.section(text, section), decisions()}
end
