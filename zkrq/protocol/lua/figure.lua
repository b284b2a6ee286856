#!lua flags=allow-oom
-- purpose: add what handlers of one process did since its last report to the figures of a minute, and of the hour that this is in.
-- It is not repeatable: a client sends it once, so a report that is lost is missing.  What cannot be read of a field is dropped.
-- It also notes how many items are ready here now: a backlog, minute by minute.
-- minute: since 1970, by the client's clock, so that two servers note it under the same; a wrong one is replaced.
-- KEYS: server figures scheduled expiring lead
-- ARGV: epoch generation minute / task counts
-- reply: OK
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local MINUTES_WRONG = 5 -- difference to this server's clock from which on the client's is not used
local TASKS_MAX = 10 -- names of tasks in a minute, or in an hour; further ones are told together
local FIELD_BYTES = 8192 -- of a field, from which on no further names are added to it
local COUNTS_MAX = 99 -- greatest key of a count
local COUNTS_BYTES = 800 -- of the longest counts
local NUMBER_MAX = 999999999999999 -- it is exact, and has fifteen digits
local KEEP_SECONDS = 3024000 -- 35 days without any report after which all figures of the queue go
local OTHERS = '*'
local LONGEST = {[42] = true, [82] = true} -- keys of the longest wait and duration, of which the greater one is kept
local READY = 4 -- key of the number of ready items, which is not added up; it stands with OTHERS

local function add_counts(sums, text)
  local bytes = {string.byte(text, 1, COUNTS_BYTES)}
  local key, skips, sum, factor = 0, false, 0, 1 -- skips: the number is one of zeros
  for n = 1, #bytes do
    local byte = bytes[n]
    if byte >= 128 then
      sum, factor = sum + (byte - 128) * factor, factor * 128
    else
      sum = sum + byte * factor
      if skips then
        key, skips = key + sum, false
      elseif sum == 0 then
        skips = true
      elseif key <= COUNTS_MAX then
        local known = sums[key] or 0
        sums[key] = math.min(NUMBER_MAX, LONGEST[key] and math.max(known, sum) or known + sum)
        key = key + 1
      end
      sum, factor = 0, 1
    end
  end
  return sums
end

local function counts_of(sums)
  local written, parts, zeros = gate.figures.written, {}, 0
  for key = 0, COUNTS_MAX do
    local sum = sums[key]
    if sum then
      if zeros > 0 then parts[#parts + 1] = '\0' .. written(zeros) end
      parts[#parts + 1], zeros = written(sum), 0
    else
      zeros = zeros + 1
    end
  end
  return table.concat(parts)
end

-- Read what a field has of this round: its names, and its entries in order (unit: the minute or hour among those of the field).
local function read_field(kept, round)
  local names, entries = {}, {}
  local stored, listed, at = string.match(kept, '^(%d+)([^\n]*)\n()')
  if tonumber(stored) ~= round then return names, entries end
  for name in string.gmatch(listed, '\t([^\t]*)') do names[#names + 1] = name end
  local unit, index, length
  while at do
    unit, at = gate.figures.value(kept, at)
    if at then index, at = gate.figures.value(kept, at) end
    if at then length, at = gate.figures.value(kept, at) end
    if not at or not names[index + 1] or at + length - 1 > #kept then break end
    entries[#entries + 1] = {unit = unit, index = index, text = string.sub(kept, at, at + length - 1)}
    at = at + length
  end
  return names, entries
end

local function write_field(field, round, names, entries)
  local written, parts = gate.figures.written, {string.format('%.0f', round)}
  for _, name in ipairs(names) do parts[#parts + 1] = '\t' .. name end
  parts[#parts + 1] = '\n'
  for _, one in ipairs(entries) do
    local text = one.sums and counts_of(one.sums) or one.text
    parts[#parts + 1] = written(one.unit) .. written(one.index) .. written(#text) .. text
  end
  redis.call('HSET', figures, field, table.concat(parts))
end

local function note_at(kind, at, ready_now)
  local field, round, unit = gate.figures.field(kind, at), math.floor(at / gate.figures.PER_FIELD), at % gate.figures.PER_FIELD
  local kept = redis.call('HGET', figures, field) or ''
  local names, entries = read_field(kept, round)
  local is_full, indices, named, count = #kept > FIELD_BYTES, {}, {}, 0
  local function name_entry(task, one)
    named[task] = one
    if task ~= OTHERS then count = count + 1 end
  end
  local function sums_of(task)
    if not named[task] then
      if not indices[task] then names[#names + 1], indices[task] = task, #names end
      entries[#entries + 1] = {unit = unit, index = indices[task], text = ''}
      name_entry(task, entries[#entries])
    end
    local one = named[task]
    one.sums = one.sums or add_counts({}, one.text)
    return one.sums
  end
  for n, name in ipairs(names) do indices[name] = n - 1 end
  for _, one in ipairs(entries) do
    if one.unit == unit then name_entry(names[one.index + 1], one) end
  end
  for i = first, last, 2 do
    local task = ARGV[i]
    if not named[task] and (count >= TASKS_MAX or is_full or string.find(task, '[\t\n]')) then task = OTHERS end
    add_counts(sums_of(task), ARGV[i + 1])
  end
  sums_of(OTHERS)[READY] = ready_now > 0 and ready_now or nil -- a zero is not written
  write_field(field, round, names, entries)
end

local function operation(minute)
  local here = math.floor(now_ms / 60000)
  minute = tonumber(minute) or here
  if not (math.abs(minute - here) <= MINUTES_WRONG) then minute = here end -- NaN is replaced, too
  local ready_now = totals()
  note_at('m', minute, ready_now)
  note_at('h', math.floor(minute / 60), ready_now)
  redis.pcall('EXPIRE', figures, KEEP_SECONDS) -- a user with the rights of release 0.2.0 may not do this: figures stay for longer
  return {'OK'}
end
