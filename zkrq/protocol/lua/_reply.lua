-- purpose: collect the records that a decision made, as its reply carries them to apply: id, record, left_ms; the last
-- one of each item.
local decided, position_of = list(), {}

local function report(id, packed, at_us)
  local at = position_of[id]
  if not at then
    at = decided.n + 1
    position_of[id], decided.n = at, decided.n + 3
  end
  decided[at], decided[at + 1], decided[at + 2] = id, packed, math.floor((at_us - now_us) / 1000)
end

-- Mint the next version of an item under this epoch, write it, report it.
local function decide(id, r, state, token, at_us, expires_us)
  local old_state, old_token = r.state, r.token
  r.epoch, r.n, r.state, r.token = epoch, r.n + 1, state, token
  if state == 'Q' or (state == 'X' and old_state ~= 'X') then r.due = at_us end
  local packed = write_record(r)
  place(id, old_state, old_token, r, r.marks, at_us, packed, expires_us)
  report(id, packed, at_us)
end

-- Every server must hold what is reported about an item, so a record of an earlier epoch is decided again.
local function tell_as_is(id, packed, r)
  if r.epoch < epoch then
    decide(id, r, r.state, r.token, stands_at_us(id, r))
  else
    report(id, packed, stands_at_us(id, r))
  end
end
