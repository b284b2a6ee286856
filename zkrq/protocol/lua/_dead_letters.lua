-- purpose: read dead letters in the order in which they died.

-- Call visit(r, position) with each dead letter of a page of the index; entries of others are removed from it.
local function each_letter(entries, visit)
  for _, entry in ipairs(entries) do
    local bundle, position = read_entry(entry)
    local r = open(bundle)
    if r and position and position <= r.size and string.byte(r.states, position) == DEAD then
      visit(r, position)
    else
      redis.call('ZREM', dead, entry)
    end
  end
end
