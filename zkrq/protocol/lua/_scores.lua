-- purpose: order ready and scheduled by priority, then by a moment, in one number; collect what a call writes.
local PRIORITIES = 10
local LAST_MOMENT = 2262949953421311 -- a step after the first moment

local rank, due_of, each_priority
do
  local PRIORITY_STEP = 562949953421312 -- 2^49 microseconds, 17 years
  local FIRST_MOMENT = 1700000000000000 -- so that ten steps fit into the 53 bits of a score

  function rank(priority, due_us)
    return (PRIORITIES - 1 - priority) * PRIORITY_STEP + (due_us - FIRST_MOMENT)
  end

  function due_of(priority, score)
    return score - (PRIORITIES - 1 - priority) * PRIORITY_STEP + FIRST_MOMENT
  end

  -- Call visit(priority, score) with the first score of each priority that ready or scheduled has, highest priority first.
  function each_priority(index, visit)
    local from, step = '-inf', nil
    repeat
      local score = tonumber(redis.call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2])
      if not score then return end
      -- Below 0: due before the first moment; a greater one than any has is damaged.
      step = math.min(PRIORITIES - 1, math.max(0, math.floor(score / PRIORITY_STEP)))
      visit(PRIORITIES - 1 - step, score)
      from = (step + 1) * PRIORITY_STEP
    until step == PRIORITIES - 1
  end
end

-- Write a whole number as a text: Redis would with '%.17g', which takes several times as long.
local function text_of(number)
  return number % 1 == 0 and string.format('%d', number) or number
end
