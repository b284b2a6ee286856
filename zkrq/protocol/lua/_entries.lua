-- purpose: name an item with a moment of its own, in the indexes and beside its record: bundle, a zero byte, position.
local function entry_of(r, position)
  return r.bundle .. '\0' .. string.char(position)
end

-- Return the bundle that an entry of an index names, and the position of an item with a moment of its own.
local function read_entry(entry)
  local length = #entry
  if string.byte(entry, length - 1) ~= 0 then return entry end
  return string.sub(entry, 1, length - 2), string.byte(entry, length)
end

-- Divide what Redis returns of an index with scores.
local function with_scores(listed)
  local entries, score_of = {}, {}
  for i = 1, #listed, 2 do entries[#entries + 1], score_of[listed[i]] = listed[i], listed[i + 1] end
  return entries, score_of
end

local places = {} -- of entries in groups (_groups.lua)
do
  local RANK_BYTES, STATE_BYTES = 10, 5

  -- Return what groups says of one: number of claimed items, whether there may be members, rank and entry of the first.
  function places.read_state(state)
    if not state then return 0, false, nil end
    local claims, may_have = struct.unpack('<I4B', state)
    return claims, may_have == 1, #state > STATE_BYTES and string.sub(state, STATE_BYTES + 1) or nil
  end

  -- Return the entry after its rank.
  function places.entry_in(placed)
    return string.sub(placed, RANK_BYTES + 1)
  end

  function places.entry_of_member(member)
    return places.entry_in(string.sub(member, string.find(member, '\0', 1, true) + 1))
  end
end

-- Add one value, or two, to what is to be written.
local function append(to, name, a, b)
  local values = to[name]
  if not values then
    values = {n = 0}
    to[name] = values
  end
  local n = values.n + 1
  values[n] = a
  if b then
    n = n + 1
    values[n] = b
  end
  values.n = n
end
