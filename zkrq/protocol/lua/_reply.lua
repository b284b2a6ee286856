-- purpose: report what a call has decided, as apply takes it: id, record, notes, since.
-- notes: position, length and text of each.  since: what to add to the record's moments, beside the clock of the server
-- that applies it; empty: its moments count from its decision, which was now.
local function decisions()
  local flat, n = {}, 0
  for _, r in ipairs(order) do
    if r.decided or r.told then
      flat[n + 1], flat[n + 2], flat[n + 3] = r.bundle, r.record or string.sub(r.packed, SHIFT_BYTES + 1), beside.pack(r)
      flat[n + 4] = r.decided and '' or string.format('%.0f', shift_of(r) - now_us)
      n = n + 4
    end
  end
  return flat
end
