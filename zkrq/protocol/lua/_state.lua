-- purpose: hold all that belongs to one call.  A server makes the functions of this library once and keeps them, so what
-- a call sets would be seen by the next one.  Therefore every variable that a function assigns stands here, and reset
-- gives it a value of its own before an operation begins, whatever the call before has left: it may have failed half-way.
-- The keys: those that the operation declares, nil for the others (bind, which the loader writes from the header).
local server, queues, records, payloads, ready, scheduled, members, groups, claimed, holdings, dead, recent, tombstones, keys, expiring,
  notes, owners, fenced_owners, lead, waiting, reports, aside, figures
local ARGV, first, last -- ARGV[first] to ARGV[last] is what repeats
local epoch, generation -- from _gate.lua on, the epoch is a number
local now_us, now_ms -- this server's clock
local opened, order -- bundles that were read, by id and in the order of their reading (_bundle.lua); order.damaged: the ids of
  -- those whose records cannot be read
local entering, leaving, new, tally -- what to write at the end (_index.lua)
local lines -- what changes in groups, in order and by group (of); entries that are removed already (settled; _groups.lua)
local removals, readied -- bundles of which nothing is left, and items queued, by this call
local openings -- for waiters (_wake.lua): items that are no longer claimed (freed), and whether there is a moment to learn of: something was
  -- scheduled, or a group has begun to rest (later)
local numbers, changed -- of the lead (_lead.lua)
local noted -- the last request of each owner that was noted (_owners.lua)
local taken_now -- keys of items that this call has queued (_taken.lua)

local function nothing_to_write()
  entering, leaving, new, tally = {}, {}, {}, {bytes = 0, removed = 0, begun = 0, in_line = 0, blocked = 0, remembered = 0}
  lines = {of = {}, settled = {}}
end

-- Forget everything but clock, gate, keys and arguments, which the caller has just set.
local function reset()
  opened, order, noted, taken_now = {}, {damaged = {}}, {}, {}
  removals, readied, openings = 0, 0, {freed = 0, later = false}
  numbers, changed = nil, {}
  nothing_to_write()
end
