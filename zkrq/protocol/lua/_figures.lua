-- purpose: say where figures of handlers stand: by the minute for 26 hours, by the hour for 35 days.
-- A field of the hash has ten minutes, or ten hours, as lines: minute or hour since 1970, tab, task, tab, counts.  Fields are used in
-- turn, so nothing has to be removed: what is left in one of an earlier round is older than what is told.
-- Counts are pairs of a key and a number, `0:12 1:7`; what the keys stand for only clients know (protocol/figures.py).
gate.figures = {PER_FIELD = 10, m = {fields = 157, seconds = 60}, h = {fields = 85, seconds = 3600}} -- no name of its own: Lua allows 200

-- Return the field of a minute ('m') or an hour ('h').
function gate.figures.field(kind, at)
  return kind .. math.floor(at / gate.figures.PER_FIELD) % gate.figures[kind].fields
end
