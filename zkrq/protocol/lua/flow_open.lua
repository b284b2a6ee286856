#!lua flags=allow-oom
-- purpose: decide that what is held for a flow that has ended is queued, or removed if the flow was cancelled; some at a time.
-- The state of these items moves, so clients that do this together open each once.
-- opened: number of items of this call.  more: 1 if others may be held.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- ARGV: epoch generation put_window_ms trim flow
-- reply: OK opened more [id record notes since; of each item, and of the flow]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, trim, flow)
  local HELD_MAX = 100 -- items opened in one call
  local ended, stage = flows.stage_of(flow)
  if stage ~= 'E' then return {'OK', 0, 0, {}} end
  local held, is_done = flows.held(flow, HELD_MAX), flows.outcome(ended) == 'done'
  tell_as_is(ended)
  for _, r in ipairs(held) do
    touch(r)
    if is_done then
      set_own(r, 1, now_us, select(2, own_of(r, 1)))
    else
      remove(r, 1, 1, 0)
    end
  end
  commit()
  if is_done then wake(#held) end
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  return {'OK', #held, #held == HELD_MAX and 1 or 0, decisions()}
end
