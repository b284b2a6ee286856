#!lua flags=allow-oom
-- purpose: decide one section of the queue's limits (_limits.lua): a record like an item's has them, and is replicated like
-- one.  The last declaration holds, whoever made it.
-- settings: of this section, name=value,name=value; empty: none from now on.  The other sections stay as they are.
-- call: id of this call; one that was executed here does nothing (_calls.lua).
-- before: the settings of the section before.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation queue section settings call
-- reply: OK before [id record notes since; of the record]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue, section, settings, call)
  local r = open(LIMITS)
  local known = r ~= nil
  if not r then r = begin_itself(LIMITS) end
  local before = limits.section(r.tail, section)
  local text = was_executed(call) and r.tail or limits.with_section(r.tail, section, settings)
  if r.tail ~= text then
    touch(r)
    r.tail, r.states = text, text == '' and 'X' or 'P'
  elseif known then
    tell_as_is(r)
  end
  if r.decided then list_queue(queue) end
  commit()
  if r.decided then wake(math.huge) end
  return {'OK', before, decisions()}
end
