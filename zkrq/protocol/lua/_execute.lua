-- purpose: execute a call: its gate and its clock once, its operation for each queue.

-- bind(KEYS, at): names the keys of the queue whose first one is KEYS[at + 1].
-- key_count, argument_count: how many belong to each queue, without epoch, generation and what repeats.
-- gated: how the gate is asked: 'adopts', 'looks' (_gate.lua), nil: not at all.
local function execute(operation, bind, key_count, argument_count, gated, called_keys, called_arguments)
  ARGV, epoch, generation = called_arguments, called_arguments[1], called_arguments[2]
  bind(called_keys, 0)
  local refusal = gated and gate.refusal(gated)
  if refusal then return refusal end
  read_clock()
  if #called_keys == key_count then
    reset()
    first, last = 3 + argument_count, #ARGV
    local reply = operation(unpack(ARGV, 3, 2 + argument_count))
    return reply
  end
  local replies, at = {}, 3
  for part = 1, #called_keys / key_count do
    bind(called_keys, (part - 1) * key_count)
    reset()
    local begin_at = at + 1
    first, last = begin_at + argument_count, at + ARGV[at]
    at = last + 1
    local done, reply = pcall(operation, unpack(ARGV, begin_at, first - 1))
    replies[part] = (done or type(reply) == 'table') and reply or {err = reply}
  end
  return replies
end
