#!lua flags=allow-oom
-- purpose: read what this server keeps of the figures of handlers (_figures.lua): the fields that have these minutes, or hours, as they
-- are stored.  They may have others beside these.
-- kind: m, by the minute, or h, by the hour; earliest, latest: the first and the last one, since 1970; of more than a page the first.
-- KEYS: server figures
-- ARGV: epoch generation kind earliest latest
-- reply: OK [field; as it is stored, empty if there is none]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
-- writes: nothing
local function operation(kind, earliest, latest)
  local FIELDS_MAX = 41
  local fields = {}
  for n = math.floor(earliest / gate.figures.PER_FIELD), math.floor(latest / gate.figures.PER_FIELD) do
    fields[#fields + 1] = gate.figures.field(kind, n * gate.figures.PER_FIELD)
    if #fields >= FIELDS_MAX then break end
  end
  local found = #fields > 0 and redis.call('HMGET', figures, unpack(fields)) or {}
  for n, each in ipairs(found) do found[n] = each or '' end
  return {'OK', found}
end
