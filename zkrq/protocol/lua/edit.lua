#!lua flags=allow-oom
-- purpose: give dead letters another content.  It stands before what is saved of the item (_notes.lua), and is kept, copied and
-- given to deliveries with that.  The letter stays dead: its client redrives it once every server has the content, so no delivery
-- is given the former one after that.  One that stands for an inner flow has no content, and stays as it is.
-- edit: as zkrq/base/saved.py packs it.
-- KEYS: server records payloads ready scheduled members groups claimed holdings dead recent tombstones keys expiring notes lead
-- ARGV: epoch generation edit / id
-- reply: OK [state; of each: E edited, L too long together with what is saved of it, empty: no such dead letter] [id record notes since; of each bundle concerned]
-- reply: NOTINSYNC generation
-- reply: STALE epoch
local function operation(edit)
  local states = {}
  for i = first, last do
    local bundle, position = stored_at(ARGV[i])
    local r = open(bundle)
    local is_dead = r and position <= r.size and string.byte(r.states, position) == DEAD
    if not is_dead or r.fields ~= '' and flows.nested(r) then
      states[#states + 1] = ''
    else
      touch(r)
      states[#states + 1] = beside.edit(r, position, edit) and 'E' or 'L'
    end
  end
  commit()
  return {'OK', states, decisions()}
end
