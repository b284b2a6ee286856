-- purpose: say where figures of handlers stand: by the minute for 26 hours, by the hour for 35 days.
-- A field of the hash has ten minutes, or ten hours.  Its first line has the time since 1970 in such tens, and names of tasks, with a tab
-- before each; after it come entries: the minute or hour among the ten, the place of the task in the first line (from 0), the length of
-- the counts, and the counts.  Fields are used in turn, so nothing has to be removed: what is left in one of an earlier round is older
-- than what is told.
-- Counts are numbers in the order of their keys; a zero stands, with the number after it, for that many zeros.  What the keys stand for
-- says protocol/figures.py; of three figure.lua knows it.  Each number has seven bits in a byte, the lowest first; the last byte is below 128.
gate.figures = {PER_FIELD = 10, m = {fields = 157, seconds = 60}, h = {fields = 85, seconds = 3600}} -- no name of its own: Lua allows 200

-- Return the field of a minute ('m') or an hour ('h').
function gate.figures.field(kind, at)
  return kind .. math.floor(at / gate.figures.PER_FIELD) % gate.figures[kind].fields
end

-- Return the number at a place of a text, and the place after it; nil where none ends within eight bytes.
function gate.figures.value(text, at)
  local sum, factor = 0, 1
  for n = at, at + 7 do
    local byte = string.byte(text, n)
    if not byte then return nil end
    if byte < 128 then return sum + byte * factor, n + 1 end
    sum, factor = sum + (byte - 128) * factor, factor * 128
  end
end

-- Return a number as it stands in a text.
function gate.figures.written(value)
  local text = ''
  while value >= 16384 do
    text, value = text .. string.char(128 + value % 128), math.floor(value / 128)
  end
  if value >= 128 then return text .. string.char(128 + value % 128, math.floor(value / 128)) end
  return text .. string.char(value)
end
