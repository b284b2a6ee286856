-- purpose: keep why items failed, beside their record; sent with it as one string: position, length and text of each.
local function pack_notes(r)
  if not r.notes then return '' end
  local position, text = unpack(r.notes[1] or {})
  if #r.notes == 1 then return struct.pack('<BH', position, #text) .. text end
  local texts = {}
  for i, noted in ipairs(r.notes) do texts[i] = struct.pack('<BH', noted[1], #noted[2]) .. noted[2] end
  return table.concat(texts)
end

local function read_notes(r, texts)
  local at, position, text = 1, nil, nil
  while at <= #texts do
    position, text, at = struct.unpack('<BHc0', texts, at)
    if position >= 1 and position <= r.size then note(r, position, text) end
  end
end

-- Read the notes that are kept of a bundle.
local function recall_notes(r)
  for at = 1, #r.own, OWN_BYTES do
    local position = string.byte(r.own, at)
    local text = redis.call('HGET', notes, entry_of(r, position))
    if text then note(r, position, text) end
  end
end
