-- purpose: keep the limits of a queue: the text of its record LIMITS, which place notes in the lead; and read its pause.
-- The text has a word for each section, which a client declares as a whole: section:name=value,name=value
-- * groups: of each group.  concurrency=N: at most N items of it are claimed at once.  ordered=1: one at a time, in the
--   order of their pushes.  rate=K/MS: at most K claims of it begin within MS milliseconds (_groups.lua).
--   named=NAME/N/K/MS;...: of the group of this name in place of that, each number may be empty; in a name bytes but letters,
--   digits and _.- are written as % and two hexadecimal digits.
-- * limits: of all consumers together.  concurrency=N: at most N items are claimed at once.  rate=K/MS: at most K claims
--   begin within MS milliseconds.
-- * size: max=N: a push is refused while N items or more are queued or claimed.
-- * history: keep=N: the N items that have ended last are kept (_endings.lua).
-- * letters: count=N: N dead letters are kept, 0: any number.  age=MS: for so many milliseconds.  expired=1: what outlives its
--   time to live is one, too.  Without the section as the client of each call says (_dead_letters.lua).
-- * results: ttl=MS: results of items are kept for so many milliseconds, without the section for as long as the client says.
-- * marks: of each section what programs have declared of it, as short names, the last MARKS_KEPT, joined by dots.  A program
--   that declares what is there changes nothing: what an operator or a newer program has said since holds.  The lead, which
--   every script reads, has no marks.
-- A section or a name that this version does not know stays as it is, and limits nothing.
--
-- At once: the lead counts the claimed items.  A claim is handed out when every server has it, so whichever server leads
-- next counts all that anybody holds; what it counts beyond that ends like any claim.
-- Rate: `begun` in the lead has eleven counters, each of a tenth of the time.  A window of that time touches at most eleven
-- tenths, so if their sum never exceeds K, no window has more than K; and K fit into eleven tenths of the time, so at least
-- 0.9 K may begin in each.  They count wherever place sees claims begin: on followers too, later than on the primary, so
-- the next primary forgets later.  A server that joins is given them (metadata.lua).
-- Each group that has a rate has counters of its own, beside what else groups says of it, and with the same promise; the time
-- of a named group may be another one.
-- A clock that is set back moves all counts to the present tenth: they count for longer.  One that is set forward forgets
-- them early.
local limits = {} -- one name for all, because Lua allows 200 in a library
do
  local TENTHS = 11
  local BEGUN = '<ddI4I4I4I4I4I4I4I4I4I4I4' -- microseconds in a tenth, number of the newest one, counts, newest first
  local UNTIL, MOMENT = 'U', '<d' -- the field of PAUSE that has the moment of its end, as the client has named it

  -- Return that moment as a field; '' for a pause that is ended by an operator.
  function limits.end_of_pause(until_ms)
    return until_ms > 0 and struct.pack(MOMENT, until_ms) or ''
  end

  -- Have the pause end by itself after a time (field: of end_of_pause), or not.
  function limits.set_end_of_pause(r, field, left_ms)
    tails.set_field(r, UNTIL, field)
    if field ~= '' then r.due = now_us + 1000 * left_ms end
  end

  -- Return the moment at which the pause of this record ends, by this clock, and the field; nil and '' if an operator ends it.
  function limits.pause_ends_at(r)
    local field = tails.field(r, UNTIL)
    if not field then return nil, '' end
    return r.due + shift_of(r), field
  end

  -- Tell whether the queue is paused, by its record PAUSE, nil if there is none; of a pause that ends by itself also when, by
  -- this clock, and the moment that was named.
  function limits.pause(r)
    if not r or not string.find(r.states, 'P', 1, true) then return false end
    local ends_us, field = limits.pause_ends_at(r)
    local until_ms = #field == 8 and struct.unpack(MOMENT, field) or 0
    return not ends_us or ends_us > now_us, ends_us, until_ms > 0 and until_ms < 2 ^ 53 and until_ms or 0
  end

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

  -- Return the text with the settings of a section as they were declared, and the mark of that, '' if it has none; the text
  -- as it is if that was declared before.  forced: also then.
  function limits.declared(text, section, settings, mark, forced)
    local MARKS_KEPT = 8 -- of each section
    if mark ~= '' then
      local marks, own = {}, {}
      for name, known in string.gmatch(limits.section(text, 'marks'), '([^,=]+)=([^,]*)') do
        if name == section then
          for one in string.gmatch(known, '[^.]+') do
            if one ~= mark then own[#own + 1] = one elseif not forced then return text end
          end
        else
          marks[#marks + 1] = name .. '=' .. known
        end
      end
      own[#own + 1] = mark
      marks[#marks + 1] = section .. '=' .. table.concat(own, '.', math.max(1, #own - MARKS_KEPT + 1))
      table.sort(marks)
      text = limits.with_section(text, 'marks', table.concat(marks, ','))
    end
    return limits.with_section(text, section, settings)
  end

  -- Return the greatest number of claims at once, and of claims begun in a time, and microseconds in a tenth of that time,
  -- nil if there is no rate; and the named groups, nil if there are none.
  local function read_limits(section)
    local own = limits.section(numbers.limits, section)
    local most, milliseconds = string.match(own, 'rate=(%d+)/(%d+)')
    local at_once = string.find(own, 'ordered=1', 1, true) and 1 or tonumber(string.match(own, 'concurrency=(%d+)') or math.huge)
    return at_once, tonumber(most or math.huge), milliseconds and 100 * milliseconds, string.match(own, 'named=([^,]+)')
  end

  -- Return what write_begun has packed; nothing if it is damaged.
  local function read_counters(begun)
    if #begun ~= struct.size(BEGUN) then return {} end
    local kept = {struct.unpack(BEGUN, begun)}
    local is_sound = kept[1] >= 1 and kept[1] < 2 ^ 53 and kept[2] > -2 ^ 53 and kept[2] < 2 ^ 53
    return is_sound and kept or {}
  end

  -- Return counters as they are now, newest first, for tenths of this width (nil: of the width that they have); nil if
  -- nothing counts.  The sum of those that cannot be told apart counts from now on: for too long, never too briefly.
  function limits.read_begun(begun, width)
    local kept = {}
    if (begun or '') ~= '' then kept = read_counters(begun) end
    width = width or kept[1]
    if not width then return nil end
    local counts = {width = width, newest = math.floor(now_us / width)}
    for i = 1, TENTHS do counts[i] = 0 end
    if not kept[1] then return counts end
    local passed = math.floor(now_us / kept[1]) - kept[2]
    counts.is_moved = passed < 0
    for i = 1, TENTHS do
      local at = math.max(0, passed) + i
      if at <= TENTHS then
        if width ~= kept[1] or passed < 0 then at = 1 end
        counts[at] = counts[at] + kept[i + 2]
      end
    end
    return counts
  end

  -- Write what read_begun reads.
  function limits.write_begun(counts)
    return struct.pack(BEGUN, counts.width, counts.newest, unpack(counts, 1, TENTHS))
  end

  function limits.sum_of(counts)
    local sum = 0
    for i = 1, TENTHS do sum = sum + counts[i] end
    return sum
  end

  -- Return when fewer are counted, in microseconds: later than now, and by less than limits.longest_rest.
  function limits.fewer_at(counts)
    local oldest = TENTHS
    while oldest > 1 and counts[oldest] == 0 do oldest = oldest - 1 end
    local at = (counts.newest - oldest + 1 + TENTHS) * counts.width
    -- Clients would ask again and again, and a group that rests until then would not rest.
    assert(not (at <= now_us), 'mistake of zkrq: fewer claims count since a moment that has passed')
    return at
  end

  function limits.longest_rest(width)
    return TENTHS * width
  end

  -- Note in the lead what the record says from now on.
  function limits.note(r)
    if not numbers then read_numbers() end
    set_number('limits', r.states == 'P' and limits.with_section(r.tail, 'marks', '') or '')
    openings.later = openings.later or number('resting') > 0 -- a rate of each group may have gone
    local _, _, width = read_limits('limits')
    if width then
      set_number('begun', limits.write_begun(limits.read_begun(numbers.begun, width)))
    elseif (numbers.begun or '') ~= '' then
      set_number('begun', '')
    end
  end

  -- Tell whether groups keep the order of their pushes.
  function limits.keep_order()
    if not numbers then read_numbers() end
    local text = numbers.limits or ''
    return text ~= '' and string.find(limits.section(text, 'groups'), 'ordered=1', 1, true) ~= nil
  end

  -- Return why the primary decides each push: '' if it does not; else the letter o if groups keep the order of their pushes,
  -- and s if the size of the queue has a limit; and that limit.
  function limits.decide()
    if not numbers then read_numbers() end
    local text = numbers.limits or ''
    if text == '' then return '' end
    local why = limits.keep_order() and 'o' or ''
    local most = tonumber(string.match(limits.section(text, 'size'), 'max=(%d+)'))
    return most and why .. 's' or why, most
  end

  -- Return how many dead letters are kept, for how many milliseconds, 0: no limit; and the state of an item that has outlived
  -- its time to live; nil if the settings do not say it.
  function limits.letters()
    if not numbers then read_numbers() end
    if (numbers.limits or '') == '' then return nil end
    local own = limits.section(numbers.limits, 'letters')
    if own == '' then return nil end
    return tonumber(string.match(own, 'count=(%d+)') or 0), tonumber(string.match(own, 'age=(%d+)') or 0),
      string.find(own, 'expired=1', 1, true) and 'D' or 'X'
  end

  -- Count claims that begin now.
  function limits.count_begun(items)
    if not numbers then read_numbers() end
    local counts = limits.read_begun(numbers.begun)
    if not counts then return end
    counts[1] = counts[1] + items
    set_number('begun', limits.write_begun(counts))
  end

  -- Read the limits of named groups: by name, as read_limits returns them.
  local function read_named(named)
    local is_ordered, found = limits.keep_order(), {}
    for name, at_once, most, milliseconds in string.gmatch(named, '([^/;]+)/(%d*)/(%d*)/(%d*)') do
      name = string.gsub(name, '%%(%x%x)', function(byte) return string.char(tonumber(byte, 16)) end)
      local width = 100 * (tonumber(milliseconds) or 0)
      local has_rate = most ~= '' and width > 0
      at_once = is_ordered and 1 or tonumber(at_once) or math.huge
      found[name] = {at_once, has_rate and tonumber(most) or math.huge, has_rate and width or nil}
    end
    return found
  end

  -- Return a function of a group's name, which returns how many items of that group may be claimed at once, how many claims
  -- may begin in a time, and microseconds in a tenth of that, nil if it has no rate; nil if no group has a limit.  And the
  -- longest such tenth, nil if none has a rate.
  local function read_limits_of_groups()
    local at_once, most, width, named = read_limits('groups')
    if not named then return (at_once < math.huge or width) and function() return at_once, most, width end or nil, width end
    local found, widest = read_named(named), width
    for _, own in pairs(found) do widest = own[3] and math.max(widest or 0, own[3]) or widest end
    return function(group)
      local own = found[group]
      if own then return own[1], own[2], own[3] end
      return at_once, most, width
    end, widest
  end

  -- The same, read once in a call.
  function limits.of_groups()
    if not numbers then read_numbers() end
    local known = numbers.of_groups
    if not known or known.text ~= numbers.limits then
      known = {text = numbers.limits}
      if limits.is_set() then known.limit_of, known.widest = read_limits_of_groups() end
      numbers.of_groups = known
    end
    return known.limit_of, known.widest
  end

  function limits.is_set()
    if not numbers then read_numbers() end
    local text = numbers.limits or ''
    return text ~= '' and (limits.section(text, 'limits') ~= '' or limits.section(text, 'groups') ~= '')
  end

  -- Return how many more items may be claimed, as far as those are counted that are claimed now: negative if there are too
  -- many; and as far as those are that began lately, with the moment in microseconds when there will be fewer of these.
  function limits.left()
    local at_once, most, width = read_limits('limits')
    local slots = at_once - number('claimed')
    if not width then return slots, math.huge end
    local counts = limits.read_begun(numbers.begun, width)
    if counts.is_moved then set_number('begun', limits.write_begun(counts)) end -- or they would count until the clock is there again
    return slots, most - limits.sum_of(counts), limits.fewer_at(counts)
  end

  -- Return counters for another server: microseconds in a tenth, then of each that is not 0 how long ago it ended, and
  -- the count; '' if nothing is counted.
  function limits.pack_begun(begun)
    local counts = limits.read_begun(begun)
    if not counts then return '' end
    local texts = {string.format('%.0f', counts.width)}
    for i = 1, TENTHS do
      if counts[i] > 0 then
        local ended_ago = math.max(0, now_us - (counts.newest - i + 2) * counts.width)
        texts[#texts + 1] = string.format('%.0f %d', ended_ago, counts[i])
      end
    end
    return table.concat(texts, ' ')
  end

  -- Return counters with those of another server: of each tenth the greater number, because claims that began after this
  -- server joined are counted here, too.  nil if neither counts.
  function limits.merge_begun(begun, packed, own_width)
    local width, rest = string.match(packed, '^(%d+)(.*)$')
    local counts = limits.read_begun(begun, own_width or tonumber(width))
    if not width then return counts end
    local theirs = {}
    for ended_ago, count in string.gmatch(rest, '(%d+) (%d+)') do
      local at = counts.newest - math.floor((now_us - ended_ago) / counts.width) + 1
      if at <= TENTHS then theirs[at] = (theirs[at] or 0) + count end
    end
    for at, count in pairs(theirs) do counts[at] = math.max(counts[at], count) end
    return counts
  end
end
