-- purpose: track since when this server has led the queue without a gap.  After a change of the view, or if its clock
-- has jumped (the server was stopped), every claim gets one full lease from then on before it may expire.
-- Every client looks at every queue more often than that (owners.lua), so a longer silence counts as a jump. A client
-- finds a shorter jump: it says what this clock should say by now, 0 if it does not know.
local SILENCE_MS = 15000

-- Return that moment.
local function leading_since_us(expected_us)
  local JUMP_US = 1000000 -- a clock that is further ahead has jumped, or the call was late
  local since, silence = number('since_us'), now_ms - number('seen_ms')
  if number('epoch') ~= epoch or since == 0 or silence < 0 or silence > SILENCE_MS
    or expected_us > 0 and now_us > expected_us + JUMP_US then
    since = now_us
    set_number('epoch', epoch)
    set_number('since_us', since)
  end
  set_number('seen_ms', now_ms)
  return since
end
