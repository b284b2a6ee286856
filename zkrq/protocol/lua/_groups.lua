-- purpose: keep the line of groups.  Of each group at most one entry, its first, stands in ready: its place in line.
-- members holds a group's other entries that are due, in a sorted set without scores: group, zero byte, rank, entry.  rank:
-- priority and order (standing_of), then items with a moment of their own before bundles; Redis orders them by these bytes.
-- groups maps a group to its number of claimed items (four bytes), flags (a byte): whether members may have entries of it, and
-- whether it keeps the order; and rank and entry of its first (_entries.lua).  A group of which nothing is claimed and nothing is due is not named there.
-- A group of which as many items are claimed as its limit allows has no entry in ready, but all in members: it is blocked,
-- and costs the requests of others nothing.  When a claim ends, its next entry goes to the end of the line.
-- A group of which as many claims have begun lately as its rate allows rests: it has no entry in ready either, while it has
-- members.  Members names such groups, too, behind all entries and by the moment when the rest ends; the first claim request
-- after that has the line of the group written again.  Counters stay with the group (_limits.lua), also when nothing else is
-- left of it; then the scrub drops them once they count nothing any more.
-- A group that keeps the order has one item claimed at a time, and its items that are scheduled are members, too: while the
-- first of all waits, the group has no entry in ready.  Of such a group the state also says which item a consumer has ended
-- last, until the tombstone of that is dropped.
-- A group's place in line is this server's own; the score says since when the group has it.  All else follows from the
-- records.  A call notes what comes and leaves, and line_up (in commit) writes what follows from it once for each group.
local grouping = {} -- one name for all, because Lua allows 200 in a library
do
  local EMPTY = {} -- what nothing is in yet: most calls do one thing to each of many groups, and tables are what costs

  local function line_of(group)
    local line = lines.of[group]
    if not line then
      line = {group = group, came = EMPTY, waits = EMPTY, left = EMPTY, claims = 0, begun = 0}
      lines.of[group], lines[#lines + 1] = line, line
    end
    return line
  end

  local function line_with(r)
    local line = line_of(r.group)
    if places.is_ordered(r) then line.keeps_order = true end
    return line
  end

  -- Tell whether an entry is no longer due, or no longer queued.
  local function has_left(line, place)
    return line.left ~= EMPTY and line.left[places.entry_in(place)] == place
  end

  -- Return a table of a line's own.
  local function table_of(line, name)
    if line[name] == EMPTY then line[name] = {} end
    return line[name]
  end

  -- Return rank and entry.
  local function placed(r, entry)
    local kind = string.byte(entry, #entry - 1) == 0 and '\0' or '\1'
    return standing_of(r) .. kind .. entry
  end

  -- An entry is due and queued, wherever it was before; or it waits (waits: true), and holds its group.
  function grouping.join(r, entry, waits)
    local line = line_with(r)
    if line.came == EMPTY then line.came = {placed(r, entry)} else line.came[#line.came + 1] = placed(r, entry) end
    if waits or line.waits ~= EMPTY then table_of(line, 'waits')[entry] = waits or false end
  end

  -- An entry is no longer due, or no longer queued.
  function grouping.leave(r, entry)
    local line = line_of(r.group)
    if line.left == EMPTY then line.left = {[entry] = placed(r, entry)} else line.left[entry] = placed(r, entry) end
  end

  -- The same, written immediately; b: the bundle as it was.
  function grouping.remove(b, entry)
    grouping.leave(b, entry)
    lines.settled[entry] = true
    redis.call('ZREM', ready, entry)
    redis.call('ZREM', members, b.group .. '\0' .. placed(b, entry))
  end

  function grouping.count_claims(r, by)
    local line = line_with(r)
    line.claims = line.claims + by
  end

  -- Claims of items of a group begin.  by: how many more items are claimed now, 0 if they are counted already.
  -- has_turn: whether the group has had its turn.
  function grouping.count_begun(r, items, by, has_turn)
    local line = line_with(r)
    line.begun, line.claims, line.had_turn = line.begun + items, line.claims + by, line.had_turn or has_turn
  end

  -- Take over the counters of another server, as limits.pack_begun has packed them.
  function grouping.learn_begun(group, packed)
    line_of(group).learned = packed
  end

  -- Compare bytes, as Redis does in members; how Lua compares texts depends on the locale.
  local function is_before(a, b)
    local at, one, other = 0, nil, nil
    repeat
      at = at + 1
      one, other = string.byte(a, at), string.byte(b, at)
    until one ~= other or not one
    return (one or -1) < (other or -1)
  end

  -- Return the end of the line for an entry: one microsecond after the group that came last, so that groups keep the order
  -- in which they came, also within one call and after a clock that was set back.
  local function end_of_line(place)
    tally.line_us = math.min(math.max(now_us, (tally.line_us or number('line_us')) + 1), LAST_MOMENT)
    return text_of(rank(PRIORITIES - 1 - (string.byte(place) or 0), tally.line_us))
  end

  -- Return the first entry of a group in members that stays there, and whether another one does.
  local function first_member(line)
    local most = 2
    for _ in pairs(line.left) do most = most + 1 end
    local found = redis.call('ZRANGEBYLEX', members, '[' .. line.group .. '\0', '(' .. line.group .. '\1', 'LIMIT', 0, most)
    local first
    for _, member in ipairs(found) do
      local place = string.sub(member, #line.group + 2)
      if not has_left(line, place) then
        if first then return first, true end
        first = place
      end
    end
    return first, false
  end

  -- Return the entry that is the first of a group now, nil if none is due, and whether members may have others.
  local function choose(line, first, has_more)
    local best, may_have = first, has_more
    if not best and has_more then
      best, may_have = first_member(line)
      has_more = best ~= nil
    end
    for _, place in ipairs(line.came) do
      if not has_left(line, place) and place ~= best and (not best or is_before(place, best)) then
        best, may_have = place, has_more
      end
    end
    return best, may_have
  end

  -- Tell whether the first entry of a group that keeps the order is not due yet.
  local function waits(line, place)
    local entry = places.entry_in(place)
    if line.waits[entry] ~= nil then return line.waits[entry] end
    for _, came in ipairs(line.came) do
      if came == place then return false end
    end
    return redis.call('ZSCORE', scheduled, entry) and true or false
  end

  local function is_ordered(place)
    local r = open((read_entry(places.entry_in(place))))
    return r and places.is_ordered(r)
  end

  -- Return the counters of a group as they are now, nil if nothing counts, and how many more claims may begin.
  local function count_of(line, begun, most, width)
    if not (begun or width or line.learned) then return nil, math.huge end
    local counts = limits.merge_begun(begun, line.learned or '', width)
    counts[1] = counts[1] + line.begun
    local sum = limits.sum_of(counts)
    return sum > 0 and counts or nil, most - sum
  end

  -- Note until when a group rests, 0 if it does not; rested_us: as it was before.
  local function rest(line, rests_us, rested_us)
    if rested_us > 0 and rested_us ~= rests_us then append(leaving, members, places.resting(rested_us, line.group)) end
    if rests_us == 0 then return end
    append(entering, members, '0', places.resting(rests_us, line.group))
    if number('resting') == 0 then set_number('resting', 1) end
    openings.later = openings.later or rested_us == 0 or rests_us < rested_us
  end

  -- Do what line_up_group does, in less than half of its time, for a group that has at most one entry and no order; most
  -- groups are like that.  Only where the queue has no limits for groups.  Return false for any other group, and write nothing.
  local function line_up_simply(line, known)
    if line.keeps_order or line.waits ~= EMPTY or line.ended or line.learned or line.has_members then return false end
    local came, left, claims, was = line.came, line.left, 0, nil
    if known then
      claims, was = places.read_simple(known)
      if not claims then return false end
    end
    local best = came[1]
    if best and (came[2] or was or left ~= EMPTY) then return false end
    claims = math.max(0, claims + line.claims)
    if best then
      append(entering, ready, end_of_line(best), places.entry_in(best))
      tally.in_line = tally.in_line + 1
    elseif was then
      local entry = places.entry_in(was)
      if left[entry] == was then
        if not lines.settled[entry] then append(leaving, ready, entry) end
        tally.in_line = tally.in_line - 1
      else
        best = was
      end
    end
    if best or claims > 0 then
      append(new, 'groups', line.group, places.write_simple(claims, best))
    elseif known then
      append(new, 'old_groups', line.group)
    end
    return true
  end

  -- most, rate, width: of this group, as limits.of_groups says.
  local function line_up_group(line, known, most, rate, width)
    local claims, more, was, keeps_order, ended, ended_order, begun, rested_us = places.read_state(known)
    local counts, starts = count_of(line, begun, rate, width)
    local was_remembered = known and not was and not more and claims == 0
    keeps_order = keeps_order or line.keeps_order
    -- An order that is no longer declared ends with its items: if one without an order was first, none with one is claimed.
    local has_both = keeps_order and not line.keeps_order and was and most > 1
    if keeps_order and not has_both then most = 1 end
    if ended and ended == line.forgotten then ended, ended_order = nil, 0 end
    if line.ended and (line.ended.decided or line.ended.order >= ended_order) then
      ended, ended_order = line.ended.bundle, line.ended.order
    end
    local first, was_blocked, is_fewer = was, more and not was, false
    for entry, place in pairs(line.left) do
      if place == was then
        first = nil
        if not lines.settled[entry] then append(leaving, ready, entry) end
      elseif more then
        is_fewer = true
        if not lines.settled[entry] then append(leaving, members, line.group .. '\0' .. place) end
      end
    end
    more = more or line.has_members
    claims = math.max(0, claims + line.claims)
    local best, has_more, may_claim = nil, more, claims < most and starts > 0
    if may_claim then best, has_more = choose(line, first, more) end
    if is_fewer and (first or not may_claim) then -- choose has not looked
      has_more = first_member(line) ~= nil -- or the group would count as one that waits
    end
    if best and has_both and claims > 0 and is_ordered(best) then best, has_more = nil, true end
    if best and keeps_order and (best ~= was or line.waits[places.entry_in(best)]) and waits(line, best) then
      best, has_more = nil, true -- nothing of the group is handed out before it
    end
    local moves = best and best ~= first
    for _, place in ipairs(line.came) do
      if has_left(line, place) then
        -- neither due nor queued any more
      elseif place == best then
        moves = true -- to the end of the line, if it was the first before and had its turn
      else
        append(entering, members, '0', line.group .. '\0' .. place)
        has_more = true
      end
    end
    if first and first ~= best then
      append(entering, members, '0', line.group .. '\0' .. first)
      append(leaving, ready, places.entry_in(first))
      has_more = true
    end
    if moves then
      -- A group goes to the end of the line only when it had its turn.  If something comes before its first entry, or that
      -- is cancelled or expires, the next one takes over the place.  So does the first one if it is entered again, because
      -- something else of its bundle was decided.
      local score = was and not line.had_turn and string.byte(was) == string.byte(best)
        and redis.call('ZSCORE', ready, places.entry_in(was)) or end_of_line(best)
      append(entering, ready, score, places.entry_in(best))
      if more and first ~= best then append(leaving, members, line.group .. '\0' .. best) end
    end
    tally.in_line = tally.in_line + (best and 1 or 0) - (was and 1 or 0)
    tally.blocked = tally.blocked + (has_more and not best and 1 or 0) - (was_blocked and 1 or 0)
    if keeps_order and best and not was and not line.came[1] and (line.claims == 0 or line.claims < 0 and not limits.is_set()) then
      -- A waiter has to come for the next one: the claim before has ended (under limits all slots that are free are counted;
      -- wake), or what waited before it has gone.
      readied = readied + 1
    end
    -- What is claimed has no order then, and nothing waits: what comes next need not wait for that.
    if has_both and not best and not has_more and not ended then keeps_order = false end
    local rests_us = has_more and not best and claims < most and starts <= 0 and limits.fewer_at(counts) or 0
    if rests_us > 0 or rested_us > 0 then rest(line, rests_us, rested_us) end
    local is_used = best or has_more or claims > 0
    tally.remembered = tally.remembered + (not is_used and (ended or counts) and 1 or 0) - (was_remembered and 1 or 0)
    if is_used or ended or counts then
      append(new, 'groups', line.group, places.write_state(claims, has_more, best, keeps_order, ended, ended_order,
        counts and limits.write_begun(counts), rests_us))
    elseif known then
      append(new, 'old_groups', line.group)
    end
  end

  -- Return how many more items of the group of a bundle may be claimed.  If none may, although the group is in line, the
  -- limit was lowered: then the line is written again.
  function grouping.slots_of(r)
    local limit_of, most, rate, width = limits.of_groups(), math.huge, nil, nil
    if limit_of then most, rate, width = limit_of(r.group) end
    if places.is_ordered(r) then most = 1 end
    if most == math.huge and not width then return most end
    local claims, _, _, _, _, _, begun = places.read_state(redis.call('HGET', groups, r.group))
    local slots = most - claims
    if width then slots = math.min(slots, rate - limits.sum_of(limits.read_begun(begun, width))) end
    if slots <= 0 then line_of(r.group) end
    return slots
  end

  -- In a group that keeps the order, the end of an item travels with the claim of the next one.  Otherwise: primary T decides
  -- the ack of an item, and its client dies; the next item is claimed by another one; T dies, and the next primary, which has
  -- not heard of that ack, delivers the first item again, after the second.
  -- What counts is what a consumer has ended last: by a decision of this server, else of the greatest order, because a
  -- catch-up brings tombstones in any order.  Each server ends by itself what outlives its time or its attempts.

  -- An item of such a group is removed or dead (position: its row says by whom).
  function grouping.note_ended(r, position)
    local row = position <= r.size and string.byte(r.named, position) - NONE or 0
    if row <= 0 or select(2, row_at(r, row)) == 0 then return end
    local line, own_order = line_with(r), math.abs(r.order)
    local known = line.ended
    if known and not r.decided and (known.decided or known.order > own_order) then return end
    line.ended = {bundle = r.bundle, order = own_order, decided = r.decided}
  end

  -- The id of a removed item is used again, elsewhere: its tombstone, with which the group would forget it, is gone.
  function grouping.forget_ended(b, bundle)
    line_of(b.group).forgotten = bundle
  end

  -- Send the end of the item before with the claim of this one.  Return the bytes of its result.
  function grouping.tell_ended(r)
    local _, _, _, _, ended = places.read_state(redis.call('HGET', groups, r.group))
    local before = ended and ended ~= r.bundle and open(ended)
    if not before then return 0 end
    local bytes = 0
    if before.own ~= '' and not before.notes then
      for position = 1, before.size do bytes = bytes + #(results.recall(before, position) or '') end
    end
    tell_as_is(before)
    return bytes
  end

  -- Tell whether a claimed item is the only one of its group that is claimed, and none that is queued comes before it.
  function grouping.is_first_and_only(r)
    local claims, _, first_placed = places.read_state(redis.call('HGET', groups, r.group))
    local standing = standing_of(r)
    local is_behind = first_placed and is_before(first_placed, standing)
    local group = r.group .. '\0'
    return claims == 1 and not is_behind
      and not redis.call('ZRANGEBYLEX', members, '[' .. group, '(' .. group .. standing, 'LIMIT', 0, 1)[1]
  end

  local function is_queued(group, entry)
    local bundle, position = read_entry(entry)
    local r = open(bundle)
    if not r or r.group ~= group then return false end
    if position then return string.byte(r.states, position) == REQUEUED end
    return string.find(r.states, 'Q', 1, true) ~= nil
  end

  -- Compare what groups says of one with ready and members (state: nil if it says nothing).  If they contradict each other,
  -- have the line written again, and return true.
  function grouping.repair(group, state)
    local claims, knows_members, first, keeps_order, ended, _, begun, rests_us = places.read_state(state)
    local limit_of, most, rate, width = limits.of_groups(), math.huge, math.huge, nil
    if limit_of then most, rate, width = limit_of(group) end
    if keeps_order then most = 1 end
    local has_members = redis.call('ZRANGEBYLEX', members, '[' .. group .. '\0', '(' .. group .. '\1', 'LIMIT', 0, 1)[1]
    local entry = first and places.entry_in(first)
    local stays = entry and is_queued(group, entry)
    if stays and redis.call('ZSCORE', ready, entry) and (knows_members or not has_members) then return false end
    if not first and claims > 0 and (not has_members or knows_members and claims >= most) then return false end
    local counts = count_of({begun = 0}, begun, rate, width)
    if begun and not counts then line_of(group) end -- which drops them
    if rests_us > 0 then
      -- The next claim request here ends it, if its moment has passed: none comes to a follower.
      local is_named = redis.call('ZSCORE', members, places.resting(rests_us, group))
      if is_named and not first and has_members and knows_members then return false end
    elseif not first and begun and claims == 0 and not has_members and not knows_members then
      return false
    end
    if not first and claims == 0 and keeps_order then -- its first item waits, or nothing is left but what has ended last
      local is_waiting = has_members and redis.call('ZSCORE', scheduled, places.entry_of_member(has_members))
      if is_waiting and knows_members or ended and not has_members and not knows_members then return false end
    end
    local line = line_of(group)
    line.has_members = has_members ~= nil
    local next_one = has_members and open((read_entry(places.entry_of_member(has_members))))
    line.keeps_order = next_one and next_one.group == group and places.is_ordered(next_one)
    if stays then
      table_of(line, 'came')[1] = first
    elseif entry then
      table_of(line, 'left')[entry] = first
    end
    return true
  end

  -- Write what follows for the groups of which entries came or left, or of which claims began or ended.
  function grouping.line_up()
    local names = {}
    for i, line in ipairs(lines) do names[i] = line.group end
    local known = redis.call('HMGET', groups, unpack(names))
    local limit_of, most, rate, width = limits.of_groups(), math.huge, math.huge, nil
    local is_simple = limit_of == nil
    for i, line in ipairs(lines) do
      if limit_of then most, rate, width = limit_of(line.group) end
      if not (is_simple and line_up_simply(line, known[i])) then line_up_group(line, known[i], most, rate, width) end
    end
    add_number('in_line', tally.in_line)
    add_number('blocked', tally.blocked)
    add_number('remembered', tally.remembered)
    if tally.line_us then set_number('line_us', text_of(tally.line_us)) end
  end

  -- Return when the first rest of a group ends; nil if no group rests.
  function grouping.rest_ends_at()
    local member = redis.call('ZRANGEBYLEX', members, '[' .. places.RESTING, '+', 'LIMIT', 0, 1)[1]
    return member and (places.read_resting(member))
  end

  -- Have the lines of groups written again whose rest is over.  So it is if there is no rate any more, or if it would last
  -- longer than any can, because the clock was set back.
  function grouping.end_rests()
    local RESTS_MAX = 100 -- groups in one call
    local first_us = grouping.rest_ends_at()
    if not first_us then return set_number('resting', 0) end
    local _, width = limits.of_groups()

    local function end_between(from, to)
      for _, member in ipairs(redis.call('ZRANGEBYLEX', members, from, to, 'LIMIT', 0, RESTS_MAX)) do
        local _, group = places.read_resting(member)
        line_of(group)
        append(leaving, members, member)
      end
    end

    local past, behind = '[' .. places.resting(now_us, places.RESTING), width and now_us + limits.longest_rest(width)
    if not width or first_us <= now_us then end_between('[' .. places.RESTING, width and past or '+') end
    if width then end_between('(' .. places.resting(behind, places.RESTING), '+') end
  end
end
