#!lua flags=allow-oom
-- purpose: decide that members are queued which waited for others of their flow, because all of these have been acked, as every
-- server knows.  The state of these items moves, so clients that do this together open each once.  One of a flow that is failing,
-- or has ended, stays as it is: it is removed then (flow_open.lua).
-- opened: number of items of this call.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation flow / id
-- reply: OK opened [id record notes since; of each item, and of the flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(flow)
  local opened, runs = 0, flows.runs(flow)
  for i = first, last do
    local r = open(ARGV[i])
    if r and flows.of(r) == flow then
      local _, opens = flows.held_for(r)
      if runs and opens == 'N' and flows.is_held(r) then
        flows.open_held(r)
        opened = opened + 1
      else
        tell_as_is(r)
      end
    end
  end
  commit()
  if opened > 0 then wake(opened) end
  return {'OK', opened, decisions()}
end
