-- purpose: read and write the limits of a queue: the text of its record LIMITS, which place notes in the lead.
-- The text has a word for each section, which a client declares as a whole: section:name=value,name=value
-- * limits: of all consumers together.  concurrency=N: at most N items are claimed at once.  rate=K/MS: at most K claims
--   begin within MS milliseconds.
-- A section or a name that this version does not know stays as it is, and limits nothing.
local limits = {} -- one name for all, because Lua allows 200 in a library

-- Return the settings of a section, '' if it has none.
function limits.section(text, section)
  return string.match(' ' .. (text or ''), ' ' .. section .. ':(%S*)') or ''
end

-- Return the text with other settings of a section, '' for none.  The sections stand in the order of their names.
function limits.with_section(text, section, settings)
  local words = {}
  for word in string.gmatch(text, '%S+') do
    if string.sub(word, 1, #section + 1) ~= section .. ':' then words[#words + 1] = word end
  end
  if settings ~= '' then words[#words + 1] = section .. ':' .. settings end
  table.sort(words)
  return table.concat(words, ' ')
end

-- Note in the lead what the record says from now on.
function limits.note(r)
  if not numbers then read_numbers() end
  set_number('limits', r.states == 'P' and r.tail or '')
end
