#!lua flags=allow-oom
-- purpose: add what handlers of one process did since its last report to the figures of a minute, and of the hour that this is in.
-- It is not repeatable: a client sends it once, so a report that is lost is missing.  Lines that cannot be read are dropped.
-- minute: since 1970, by the client's clock, so that two servers note it under the same; a wrong one is replaced.
-- KEYS: server figures
-- ARGV: epoch generation minute / task counts
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local MINUTES_WRONG = 5 -- difference to this server's clock from which on the client's is not used
local TASKS_MAX = 10 -- names of tasks in a minute, or in an hour; further ones are told together
local FIELD_BYTES = 8192 -- of a field, from which on no further names are added to it
local COUNTS_MAX = 99 -- greatest key of a count
local NUMBER_MAX = 999999999999999 -- it is exact, and has fifteen digits
local KEEP_SECONDS = 3024000 -- 35 days without any report after which all figures of the queue go
local OTHERS = '*'

local function add_counts(sums, text)
  for key, value in string.gmatch(text, '(%d+):(%d+)') do
    key, value = tonumber(key), tonumber(value)
    if key <= COUNTS_MAX then sums[key] = math.min(NUMBER_MAX, (sums[key] or 0) + value) end
  end
end

local function written(sums)
  local parts = {}
  for key = 0, COUNTS_MAX do
    if sums[key] then parts[#parts + 1] = string.format('%d:%.0f', key, sums[key]) end
  end
  return table.concat(parts, ' ')
end

-- Read the lines of a field that are of this round: in order, by name, and how many names there are at this time.
local function lines_of_figures(packed, at)
  local lines, named, names, round = {}, {}, 0, math.floor(at / gate.figures.PER_FIELD)
  for when, task, text in string.gmatch(packed or '', '(%d+)\t([^\t\n]*)\t([^\t\n]*)\n') do
    when = tonumber(when)
    if math.floor(when / gate.figures.PER_FIELD) == round then
      local line = {at = when, task = task, text = text}
      lines[#lines + 1] = line
      if when == at then named[task], names = line, names + 1 end
    end
  end
  return lines, named, names
end

local function note_at(kind, at)
  local field = gate.figures.field(kind, at)
  local packed = redis.call('HGET', figures, field)
  local lines, named, names = lines_of_figures(packed, at)
  local is_full = packed and #packed > FIELD_BYTES
  for i = first, last, 2 do
    local task = ARGV[i]
    if not named[task] and (names >= TASKS_MAX or is_full or string.find(task, '[\t\n]')) then task = OTHERS end
    local line = named[task]
    if not line then
      line = {at = at, task = task, text = ''}
      lines[#lines + 1], named[task], names = line, line, names + 1
    end
    if not line.sums then
      line.sums = {}
      add_counts(line.sums, line.text)
    end
    add_counts(line.sums, ARGV[i + 1])
  end
  local parts = {}
  for n, line in ipairs(lines) do
    parts[n] = string.format('%.0f\t%s\t%s\n', line.at, line.task, line.sums and written(line.sums) or line.text)
  end
  redis.call('HSET', figures, field, table.concat(parts))
end

local function operation(minute)
  local here = math.floor(now_ms / 60000)
  minute = tonumber(minute) or here
  if not (math.abs(minute - here) <= MINUTES_WRONG) then minute = here end -- NaN is replaced, too
  note_at('m', minute)
  note_at('h', math.floor(minute / 60))
  redis.pcall('EXPIRE', figures, KEEP_SECONDS) -- a user with the rights of release 0.2.0 may not do this: figures stay for longer
  return {'OK'}
end
