#!lua flags=allow-oom
-- purpose: decide bundles again as they are here, under this epoch, whatever other servers know of them.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation / id
-- reply: OK [id record notes since; of each]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation()
  for i = first, last do
    local r = open(ARGV[i])
    if r and not r.decided then
      beside.recall(r)
      enter_again(r)
      touch(r)
      if r.fields ~= '' then beside.save_again(r, 1, r.size) end
    end
  end
  commit()
  return {'OK', decisions()}
end
