
------------------------------------------------------------------------------- counted limits

-- A limit per minute is a leaky bucket, "level, at": each unit costs a minute in milliseconds and
-- `limit` of the level leaks away each millisecond. A day or month is a sum in a hash of its own.
local MINUTE, KEEP_SUMS = 60000, 172800000

function L.charges_of(line)
  local out = {}
  for part in line:gmatch('[^\30]+') do
    local f, n = {}, 0
    for value in (part .. '\31'):gmatch('([^\31]*)\31') do
      n = n + 1
      f[n] = value
    end
    out[#out + 1] = {
      counter = f[1], window = f[2], amount = tonumber(f[3]), limit = tonumber(f[4]),
      floor = tonumber(f[5]), ends = tonumber(f[6]), settles = f[7] == '1',
    }
  end
  return out
end

function L.wall() return frozen and now or clock end -- calendars follow the host's clock

function L.sum_of(c)
  return max(tonumber(call('HGET', K.SUMS .. c.window, c.counter)) or 0, c.floor)
end

function L.level_of(c)
  local line = call('GET', K.MINUTES .. c.counter)
  if not line then return 0 end
  local f = L.fields(line)
  return max(0, tonumber(f[1]) - c.limit * max(0, now - tonumber(f[2])))
end

function L.has_quota(c)
  if c.window ~= '' then return L.sum_of(c) + c.amount <= c.limit end
  return L.level_of(c) + c.amount * MINUTE <= c.limit * MINUTE
end

-- Where a limit stands, and when `amount` more would fit.
function L.quota_state(c, amount)
  local used, wait
  if c.window ~= '' then
    used, wait = L.sum_of(c), max(0, c.ends - L.wall())
  else
    local level = L.level_of(c)
    used = -floor(-level / MINUTE)
    if amount <= c.limit then
      local missing = level + (amount - c.limit) * MINUTE
      wait = c.limit > 0 and max(0, -floor(-missing / c.limit)) or 0
    end
  end
  return table.concat({ c.counter, c.window, L.text(used), L.text(c.limit), L.opt(wait) }, '\31')
end

function L.count_quota(c, amount)
  if c.window ~= '' then
    local key = K.SUMS .. c.window
    call('HSET', key, c.counter, L.text(max(0, L.sum_of(c) + amount)))
    call('PEXPIRE', key, L.text(max(0, c.ends - L.wall()) + KEEP_SUMS))
  else
    local level = max(0, L.level_of(c) + amount * MINUTE)
    call('SET', K.MINUTES .. c.counter, L.text(level) .. '\t' .. L.text(now), 'PX', 4 * MINUTE)
  end
end

-- Tells the caller where limits stand, and when each is whole again.
function L.tell_limits(id, charges)
  local states = {}
  for i, c in ipairs(charges) do states[i] = L.quota_state(c, c.limit) end
  answers[#answers + 1] = 'U\t' .. id .. '\t' .. table.concat(states, '\30')
end

function L.reserve_quota(charges, again)
  for _, c in ipairs(charges) do
    if c.settles or not again then L.count_quota(c, c.amount) end
  end
end

function L.settle_quota(e, tokens)
  if e.charges == '' then return end
  for _, c in ipairs(L.charges_of(e.charges)) do
    if c.settles then L.count_quota(c, tokens - c.amount) end
  end
end
