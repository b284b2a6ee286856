-- purpose: read the numbers of a queue's lead once, and write once what a call changes.
-- epoch, since_us, seen_ms: since when this server leads (_lease.lua); floor_ms, before which no put is taken, and
-- forgot_ms, the time of the last burial that was forgotten early (_tombstones.lua); large: whether payloads are;
-- queued, claimed, dead: how many items; removed: how many have ever been removed here; tombstone_bytes; limits, begun:
-- the text of the record, and counters (_limits.lua); in_line, blocked: how many groups have an entry in ready, and how
-- many have only members; line_us: when the last one took its place in ready (_groups.lua); awaited: items that callers
-- wait for, and awaited_ms, since when they were noted (_results.lua); order, claim_n: the greatest of an item in ordered
-- groups, and of a claim in them; remembered: groups of which groups only says what ended last,
-- or began lately; resting: 1 if members may have groups that rest (_groups.lua).
local function read_numbers()
  local found = redis.call('HMGET', lead, 'queued', 'claimed', 'dead', 'removed', 'tombstone_bytes', 'floor_ms', 'forgot_ms',
    'large', 'epoch', 'since_us', 'seen_ms', 'limits', 'begun', 'in_line', 'line_us', 'blocked', 'awaited', 'awaited_ms',
    'order', 'claim_n', 'remembered', 'resting')
  numbers = {
    queued = found[1], claimed = found[2], dead = found[3], removed = found[4], tombstone_bytes = found[5], floor_ms = found[6],
    forgot_ms = found[7], large = found[8], epoch = found[9], since_us = found[10], seen_ms = found[11],
    limits = found[12], begun = found[13], in_line = found[14], line_us = found[15], blocked = found[16],
    awaited = found[17], awaited_ms = found[18], order = found[19], claim_n = found[20], remembered = found[21],
    resting = found[22],
  }
end

-- Return a number, 0 if there is none.
local function number(name)
  if not numbers then read_numbers() end
  local value = tonumber(numbers[name] or 0)
  return value and value - value == 0 and value or 0
end

local function set_number(name, value)
  numbers[name] = value
  local n = #changed
  changed[n + 1], changed[n + 2] = name, value
end

local function add_number(name, by)
  if by == 0 then return end
  local value = number(name)
  -- One that is damaged stays so until it is counted anew (_damage.lua).
  if value ~= 0 or tonumber(numbers[name] or 0) then set_number(name, value + by) end
end

-- List the queue; with numbers it is listed already.
local function list_queue(queue)
  number('queued')
  if not numbers.queued then redis.call('SADD', queues, queue) end
end

local function write_numbers()
  if #changed == 0 then return end
  redis.call('HSET', lead, unpack(changed))
  changed = {}
end
