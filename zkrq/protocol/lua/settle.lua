#!lua flags=allow-oom
-- purpose: settle claimed items.  Verbs: ack (gone; with ms and text, text is the result and kept for ms, or for as long as the
-- settings of the queue say), nack (queued again after ms, one failure more), pass
-- (the same, and the group that it is first in does not wait for it), release (queued
-- again in its place; the holder is alive and the item did not fail, so the delivery does not count), snooze (queued again
-- after ms; like release, it does not count), bury (dead letter, text is the reason), extend (the deadline moves to ms from now), save (the same unless ms is 0, and text is kept:
-- number of the save within the claim, 1 if the attempts begin anew, otherwise 0, and the state that each later delivery is
-- given, of at most 32 KiB, otherwise it is answered as lost; one of a lesser number than the last one is late, and changes
-- nothing).
-- A claim is identified by its token, and by a version no newer than the record's.  A verb repeated with the same token
-- is answered as done, and decided again under the present epoch.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead waiting
-- items: runs of positions, two bytes each: the first and the last.  version: as it is packed in the record.  how: the
-- verb, for all but an ack without a result followed by ms and text, separated by spaces.
-- dead_max, dead_age_ms: as in claim.lua.  cuts: payloads to drop, see _cutting.lua; empty: none.
-- ARGV: epoch generation put_window_ms trim dead_max dead_age_ms cuts / id items version token how
-- reply: OK dropped_letters [lost; by position: the positions of the items whose claim is lost, a byte each] [id record notes since; of everything decided here, and of what a lost one is now] [flow; of whose members some have ended here, and about which something may be decided now]?
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(put_window_ms, trim, dead_max, dead_age_ms, cuts)
  leading_since_us(0)
  local outcomes, buries = settle_rows(first, last)
  commit()
  local dropped_letters = buries and drop_dead_letters(dead_max, dead_age_ms) or 0
  wake(readied)
  if trim == '1' and removals > 0 then trim_tombstones(tonumber(put_window_ms), 2 * removals) end
  cut_listed(cuts)
  return {'OK', dropped_letters, outcomes, decisions(), flows.due()}
end
