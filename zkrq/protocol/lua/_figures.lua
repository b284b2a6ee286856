-- purpose: say where figures of handlers stand: by the minute for 26 hours, by the hour for 35 days.
-- A field of the hash has ten minutes, or ten hours, as lines: minute or hour since 1970, tab, task, tab, counts.  Fields are used in
-- turn, so nothing has to be removed: what is left in one of an earlier round is older than what is told.
-- Counts are pairs of a key and a number, `0:12 1:7`; what the keys stand for only clients know (protocol/figures.py).
local figuring = {PER_FIELD = 10, m = {fields = 157, seconds = 60}, h = {fields = 85, seconds = 3600}} -- one name for all, as in _gate.lua

-- Return the field of a minute ('m') or an hour ('h').
function figuring.field(kind, at)
  return kind .. math.floor(at / figuring.PER_FIELD) % figuring[kind].fields
end
