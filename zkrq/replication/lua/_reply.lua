-- purpose: the records that a decision made, as its reply carries them to apply: id, record, left_ms; the last one
-- of each item.
local decided, position_of = {}, {}

local function report(id, r, at_us)
  local at = position_of[id] or #decided + 1
  position_of[id] = at
  decided[at], decided[at + 1], decided[at + 2] = id, write_record(r), math.floor((at_us - now_us) / 1000)
end

-- Mint the next version of an item under this epoch, write it, report it.
local function decide(id, r, state, token, at_us)
  local old_state = r.state
  r.epoch, r.n, r.state, r.token = epoch, r.n + 1, state, token
  place(id, old_state, r, at_us)
  report(id, r, at_us)
end
