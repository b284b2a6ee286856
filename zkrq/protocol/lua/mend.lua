#!lua flags=allow-oom
-- purpose: decide damaged bundles again from good copies of other servers: those of which the record, or a payload, is
-- damaged here, or that are set aside here (set_aside.lua).  Any other one is left as it is, so this may be repeated, and late.
-- What is decided is above all that was decided of the damaged record, which may have been later than the copy: a decision
-- that not every server had was reported to no caller.
-- since: as in apply.lua.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes owners lead waiting aside
-- ARGV: epoch generation queue / id record notes since payload
-- reply: OK [id record notes since; of each that is mended]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(queue)
  for i = first, last, 5 do
    local id, payload = ARGV[i], ARGV[i + 4]
    local r, whole = open(id), redis.call('HGET', payloads, id)
    local is_bad = damage.has(id)
    if not r and (is_bad or redis.call('HEXISTS', aside, id) == 1) then
      r = begin(id, read_record(ARGV[i + 1], 0))
      r.shift = ARGV[i + 3] + now_us
      beside.unpack(r, ARGV[i + 2])
      note_owners(r)
      order.damaged[id] = true -- so that the decision is above all others
      touch(r)
      redis.call('HDEL', aside, id)
    elseif r and is_bad and payload ~= '' then
      enter_again(r)
      touch(r)
      beside.recall(r)
    else
      r = nil
    end
    if r and payload ~= '' then
      note_size(payload, r.size)
      if whole and not is_readable(whole, true) then whole = false end
      redis.call('HSET', payloads, id, whole and joined(r.size, whole, payload) or payload)
    end
  end
  if #order > 0 then list_queue(queue) end
  commit()
  damage.recount()
  wake(readied)
  return {'OK', decisions()}
end
