-- purpose: the record of an item, packed; zkrq/replication/records.py holds the same layout and the table of states.
-- Q queued (ready or scheduled, by its due time), C claimed, D dead letter, X gone (a tombstone).
local RECORD = '<BI4I4c1BI4I4ddI4Bc0I2c0I2c0'
local FORMAT = 1

local function read_record(packed)
  local _, e, n, state, priority, attempts, failures, pushed_at, due, lease, token, key, note =
    struct.unpack(RECORD, packed)
  return {
    epoch = e, n = n, state = state, priority = priority, attempts = attempts, failures = failures,
    pushed_at = pushed_at, due = due, lease = lease, token = token, key = key, note = note,
  }
end

local function write_record(r)
  return struct.pack(RECORD, FORMAT, r.epoch, r.n, r.state, r.priority, r.attempts, r.failures, r.pushed_at, r.due,
    r.lease, #r.token, r.token, #r.key, r.key, #r.note, r.note)
end

local function newer(a, b)
  return a.epoch > b.epoch or (a.epoch == b.epoch and a.n > b.n)
end
