-- purpose: take payloads apart.  The payloads of a bundle are one string: a table (four bytes each) of where the first
-- begins and where each ends, then for each the length of its headers (two bytes), its headers, and the item.  A set
-- highest bit in the table says that a payload was dropped (cut.lua), or never came; in the first entry, that some other
-- entry has it.
local is_readable, payloads_between, payload_at, payloads_of, joined, lacks_payloads
do
  local CUT = 2147483648

  -- Return where a payload ends, and whether it was dropped; position 0: where the first one begins.
  local function end_of(whole, position)
    local packed = struct.unpack('<I4', whole, 4 * position + 1)
    return packed % CUT, packed >= CUT
  end

  -- Return how many payloads a string has; 0 if its table cannot be read.
  local function count_of(whole)
    if #whole < 8 then return 0 end
    local count = (end_of(whole, 0)) / 4 - 1
    return count % 1 == 0 and count >= 1 and #whole >= 4 * count + 4 and count or 0
  end

  -- Tell whether a string of payloads has a table, and ends where that says; each: whether each payload lies within it, too.
  -- What a payload contains is the clients' affair.  Return how many there are.
  function is_readable(whole, each)
    local count = count_of(whole)
    if count == 0 or end_of(whole, count) ~= #whole then return false end
    if not each then return count end
    local before = (end_of(whole, 0))
    for position = 1, count do
      local ending = (end_of(whole, position))
      if ending < before or ending > #whole then return false end
      before = ending
    end
    return count
  end

  -- Return the payloads of a run in the same form, except that the table counts from the beginning of the whole.
  function payloads_between(whole, from, to)
    if from == 1 and to == count_of(whole) then return whole end
    return string.sub(whole, 4 * from - 3, 4 * to + 4)
      .. string.sub(whole, end_of(whole, from - 1) + 1, (end_of(whole, to)))
  end

  -- Return one payload, nil if it is not there.
  function payload_at(whole, position)
    if position > count_of(whole) then return nil end
    local ending, is_cut = end_of(whole, position)
    return not is_cut and string.sub(whole, end_of(whole, position - 1) + 1, ending) or nil
  end

  -- Make the payloads of a bundle: those that keep(position) returns; nil: dropped.
  function payloads_of(size, keep)
    local length, parts, ends, has_holes = 4 * (size + 1), {}, {}, false
    for position = 1, size do
      local payload = keep(position)
      has_holes = has_holes or not payload
      length = length + #(payload or '')
      ends[position + 1], parts[position] = struct.pack('<I4', length + (payload and 0 or CUT)), payload or ''
    end
    ends[1] = struct.pack('<I4', 4 * (size + 1) + (has_holes and CUT or 0))
    return table.concat(ends) .. table.concat(parts)
  end

  -- Return those of one string, and from another one those that it lacks.
  function joined(size, whole, other)
    return payloads_of(size, function(position) return payload_at(whole, position) or payload_at(other, position) end)
  end

  -- Tell whether payloads of items that are not gone are missing.  That no item is gone does not show it: the record may be
  -- of another server, which has all payloads, while here some items were refused.
  function lacks_payloads(r, whole)
    if not whole then return true end
    local count = count_of(whole)
    local may_lack = count < r.size or select(2, end_of(whole, 0)) or string.find(r.states, '[XF]')
    if not may_lack then return false end
    if string.find(r.states, '[QRCD]', count + 1) then return true end
    local byte = string.byte
    for at = 1, math.min(count, r.size) do -- the highest byte says whether it was dropped, as end_of does, which takes longer
      if byte(whole, 4 * at + 4) >= 128 and string.find(r.states, '^[QRCD]', at) then return true end
    end
    return false
  end
end
