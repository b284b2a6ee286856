-- purpose: keep texts of items beside their record: why they failed, results (_results.lua), and saved states; sent with it as
-- one string: position, length and text of each.
-- A saved state is what a holder has noted of its work: each later delivery is given it.  Its text stands and travels under a
-- position of its own, behind those of items, and begins with the version of the record that saved it: only a greater one
-- takes its place.  Records and texts reach a server in any order, late, and more than once, so the record alone does not say
-- which text is the latest.
-- * Without the version: a save of a sibling overtakes this one, or the apply of an earlier save comes late and brings back
--   the older text.
-- * A removal leaves the text, which goes with the payload (_cutting.lua).  Dropped with the removal, it could be lost as that
--   could: the next primary does not know of the removal, and gives the item out again, without its state.
-- * The claim that gives a state saves it again, under its own version: every server has it before the holder does.  Without:
--   T alone has the save, and dies; its next primary B gives the item out without it; a later one, which has it, with it.
local beside = {} -- one name for all
do
  local SAVED = 128 -- added to a position
  local VERSION, VERSION_BYTES = '<I4I4', 8
  local STATE_MAX = 32768 -- bytes of a state; a text beyond it is of no client, would not fit into a reply, and is left alone

  -- Return the name of a saved state beside its record.
  function beside.entry(r, position)
    return entry_of(r, position + SAVED)
  end

  -- Return the state without its version.
  function beside.state(text)
    return text and string.sub(text, VERSION_BYTES + 1)
  end

  -- Read what settle.lua is told to save: number of the save within the claim, 1 if the attempts begin anew, and where the
  -- state begins; nil if that is too long.
  function beside.read_save(text)
    local number_of_save, anew, at = string.match(text, '^(%d+) ([01]) ()')
    if number_of_save and #text - at < STATE_MAX then return tonumber(number_of_save), anew == '1', at end
  end

  -- Return the bytes of the state of an item that is kept here, 0 without one.
  local function bytes_of(r, position)
    local bytes = redis.call('HSTRLEN', notes, beside.entry(r, position))
    return bytes <= VERSION_BYTES + STATE_MAX and bytes or 0
  end

  -- Return the bytes of the states of a run.
  function beside.saved_bytes(r, from, to)
    local bytes = 0
    for _, position in ipairs(tails.saved_in(r, from, to)) do bytes = bytes + bytes_of(r, position) end
    return bytes
  end

  -- Send the states of a run with its record, as they are.
  function beside.recall_saved(r, from, to)
    for _, position in ipairs(tails.saved_in(r, from, to)) do
      r.saved = r.saved or {}
      if not r.saved[position] and bytes_of(r, position) > 0 then r.saved[position] = redis.call('HGET', notes, beside.entry(r, position)) end
    end
  end

  -- Save the state of an item, by a decision about it.
  function beside.save(r, position, state)
    r.saved = r.saved or {}
    r.saved[position] = struct.pack(VERSION, r.epoch, r.n) .. state
  end

  -- Save the states of a run again, so that they are the latest everywhere, and are sent.
  function beside.save_again(r, from, to)
    beside.recall_saved(r, from, to)
    for _, position in ipairs(r.saved and tails.saved_in(r, from, to) or {}) do
      if r.saved[position] then beside.save(r, position, beside.state(r.saved[position])) end
    end
  end

  -- Put a content before what is saved of an item, in the place of an earlier one (zkrq/base/saved.py).  False: both are too long.
  function beside.edit(r, position, edit)
    local ENTRIES, EDITED, ONLY_EDITED = 1, 2, 3 -- how a state begins
    beside.recall_saved(r, position, position)
    local state = r.saved and beside.state(r.saved[position]) or ''
    local form, entries = string.byte(state), ''
    if form == ENTRIES then
      form, entries = EDITED, string.sub(state, 2)
    elseif (form == EDITED or form == ONLY_EDITED) and #state >= 3 then
      entries = string.sub(state, 4 + (struct.unpack('>H', state, 2)))
    else
      form = ONLY_EDITED
    end
    if 3 + #edit + #entries > STATE_MAX then return false end
    tails.set_save(r, position, tails.save_of(r, position) or 0)
    beside.save(r, position, struct.pack('>BH', form, #edit) .. edit .. entries)
    return true
  end

  -- Tell whether a text is of a later save than the one that is here.
  function beside.is_later(r, position, text)
    if #text < VERSION_BYTES then return false end
    local held = redis.call('HGET', notes, beside.entry(r, position))
    if not held or #held < VERSION_BYTES or #held > VERSION_BYTES + STATE_MAX then return true end
    local epoch_held, n_held = struct.unpack(VERSION, held)
    local epoch_of, n_of = struct.unpack(VERSION, text)
    return newer({epoch = epoch_of, n = n_of}, {epoch = epoch_held, n = n_held})
  end

  function beside.pack(r)
    if not (r.notes or r.saved) then return '' end
    local texts = {}
    for i, noted in ipairs(r.notes or {}) do texts[i] = struct.pack('<BH', noted[1], #noted[2]) .. noted[2] end
    for _, position in ipairs(r.saved and tails.saved_in(r, 1, r.size) or {}) do
      local text = r.saved[position]
      if text then texts[#texts + 1] = struct.pack('<BH', position + SAVED, #text) .. text end
    end
    return texts[2] and table.concat(texts) or texts[1] or ''
  end

  function beside.unpack(r, texts)
    local at, position, text = 1, nil, nil
    while at <= #texts do
      position, text, at = struct.unpack('<BHc0', texts, at)
      if position >= 1 and position <= r.size then
        note(r, position, text)
      elseif position > SAVED and position <= SAVED + r.size and #text <= VERSION_BYTES + STATE_MAX then
        r.saved = r.saved or {}
        r.saved[position - SAVED] = text
      end
    end
  end

  -- Read the texts that are kept of a bundle.
  function beside.recall(r)
    for at = 1, #r.own, OWN_BYTES do
      local position = string.byte(r.own, at)
      local text = redis.call('HGET', notes, entry_of(r, position))
      if text then note(r, position, text) end
    end
    if r.fields ~= '' then beside.recall_saved(r, 1, r.size) end
  end
end
