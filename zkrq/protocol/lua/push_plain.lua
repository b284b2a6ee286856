#!lua
-- purpose: apply plain pushes of new bundles with version (0, 1); a known bundle is left unchanged.
-- So are items that are gone, which the reply names: push_decided.lua decides whether their tombstones still count.  The reply
-- names a known item that is alone, too, and a bundle that has a name in its flow: the caller may have made its id, and is told then.
-- Members of a flow (_flows.lua) are applied only while this server knows the flow as open: all others the primary decides.
-- In a queue that keeps an order, or whose size has a limit, nothing is applied, because only the primary can decide about a
-- place in it.
-- record: its moments count from its arrival.
-- KEYS: server queues records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- why: see limits.decide; f: a member of a flow that is not open.
-- cuts: payloads to drop, see _cutting.lua; empty: none.
-- ARGV: epoch generation queue put_window_ms cuts / id record payload
-- reply: OK [position; of every put that was refused because it is older than the put window or newer than this clock] [position n items; of every put of which items are gone: the n of its version, and their positions, a byte each; and of every other put that is known, and alone or named: no positions]
-- reply: DECIDE why
-- reply: NOTINSYNC generation
-- reply: STALE epoch

-- Return the positions of the items that are gone, a byte each.
local function gone_of(r, size)
  local gone = {}
  for position = 1, size do
    if not string.find(r.states, '^[QRCD]', position) then gone[#gone + 1] = string.char(position - 1) end
  end
  return table.concat(gone)
end

local function tell(told, position, n, gone)
  local at = #told
  told[at + 1], told[at + 2], told[at + 3] = position, n, gone
end

local MARKED_AT, COUNT_AT, PUSHED_AT = 10, 11, 12 -- in a record
local FIELDS_FORMAT = 4 -- of what has fields (_record.lua)
local GROUPED_FORMAT, GROUPED = 3, 4 * MARK -- of what is in a group and has no other mark (_record.lua)
local GROUP_AT = 47 -- where a new record names its group, with four bytes more for each item

-- Read a new record with marks: in a group only what its place in line follows from, because all takes several times as long.
local function read_marked(record, marked, size, pushed_at, shift)
  if marked - marked % MARK ~= GROUPED or string.byte(record) ~= GROUPED_FORMAT then return read_record(record, shift) end
  local group, order = struct.unpack('<Bc0d', record, GROUP_AT + 4 * size)
  return {priority = marked % MARK, marks = GROUPED / MARK, pushed_at = pushed_at, shift = shift, group = group, order = order, fields = ''}
end

-- The same of a new record with fields: without marks its place in line follows from its priority alone.
local function read_fields(record)
  local marked, size = string.byte(record, MARKED_AT), math.max(1, string.byte(record, COUNT_AT))
  if marked >= MARK then return read_record(record, 0) end
  local own_fields = struct.unpack('<Hc0', record, GROUP_AT + 4 * size)
  if not tails.are_sound(own_fields) then return read_record(record, 0) end
  return {priority = marked, marks = 0, shift = 0, fields = own_fields}
end

-- Tell whether a server takes a plain push: one of members only while it knows their flow as open.  Otherwise one that is late
-- would come after what was asked of this server.
-- joined: of flows that were looked at before, whether they are.
local function may_join(r, joined)
  local name = flows.of(r)
  if name and joined[name] == nil then joined[name] = select(2, flows.stage_of(name)) == 'O' end
  return not name or joined[name]
end

-- Tell whether the caller may have made an id.  r: the record, if it has fields.
local function is_named(record, id, r)
  if string.byte(record, COUNT_AT) == 0 then return true end
  local flow = r and flows.of(r)
  return flow ~= nil and flows.is_named(id, flow)
end

local function operation(queue, put_window_ms, cuts)
  local why = limits.decide()
  if why ~= '' then return {'DECIDE', why} end
  local ids, late, told = {}, {}, {}
  local with_fields, joined = {}, {} -- records that have fields, by position
  for i = first, last, 3 do
    local position = #ids + 1
    ids[position] = ARGV[i]
    if string.byte(ARGV[i + 1]) == FIELDS_FORMAT then
      with_fields[position] = read_fields(ARGV[i + 1])
      if not may_join(with_fields[position], joined) then return {'DECIDE', 'f'} end
    end
  end
  local known = redis.call('HMGET', records, unpack(ids))
  local floor_ms = math.max(now_ms - put_window_ms, number('floor_ms'))
  local latest_ms = now_ms + put_window_ms
  local seen = {}

  local at = first
  local oldest_us = now_us - #ids -- one microsecond apart, so that a batch keeps its order
  for position, id in ipairs(ids) do
    local record, payload = ARGV[at + 1], ARGV[at + 2]
    local pushed_at, due_us = struct.unpack('<dd', record, PUSHED_AT)
    local size = math.max(1, string.byte(record, COUNT_AT))
    note_size(payload, size)
    if known[position] then
      local r = open(id, known[position])
      local gone = r and gone_of(r, size) or ''
      -- A damaged record says nothing, and stays until it is mended (mend.lua).
      if gone ~= '' or is_named(record, id, with_fields[position]) then tell(told, position, r and r.n or 1, gone) end
      if r then complete(r, payload) end
    elseif pushed_at < floor_ms or pushed_at > latest_ms then
      late[#late + 1] = position
    elseif not seen[id] then
      seen[id] = true
      local marked, shift = string.byte(record, MARKED_AT), due_us > 0 and now_us or oldest_us + position
      local r = with_fields[position]
      if marked >= MARK or r then
        r = r or read_marked(record, marked, size, pushed_at, shift)
        r.bundle, r.shift = id, shift
        if has_tail(r) then look_after(r) end
        if flows.of(r) then flows.begin_living(r) end
        enter(r, id, stands_at(r, due_us))
      else
        enter_queue(id, marked, due_us + shift)
      end
      append(new, 'records', id, struct.pack('<d', shift) .. record)
      append(new, 'payloads', id, payload)
      tally[QUEUED], readied = (tally[QUEUED] or 0) + size, readied + size
    else
      tell(told, position, 1, '')
    end
    at = at + 3
  end
  if readied > 0 then list_queue(queue) end
  commit()
  wake(readied)
  cut_listed(cuts)
  return {'OK', late, told}
end
