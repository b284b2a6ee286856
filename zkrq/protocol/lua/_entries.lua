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
