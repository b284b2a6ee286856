-- purpose: begin a record about the queue itself: PAUSE, LIMITS or DELETED.  Its first version counts from the clock, above all
-- of a former life of the queue (forget.lua), one a second.
local function begin_itself(id)
  return begin(id, {epoch = 0, n = math.floor(now_ms / 1000), priority = 0, marks = 0, count = 0, size = 1, pushed_at = now_ms,
    due = 0, clock = now_us, soonest = 0, shift = 0, states = 'X', named = string.char(NONE), attempts = '\0\0', row_owners = {},
    rows = '', own = '', fields = '', tail = ''})
end
