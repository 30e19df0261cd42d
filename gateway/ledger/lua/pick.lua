
------------------------------------------------------------------------------- pick and start

function L.rank_of(e) return (e.since or now) + (e.cls == 'b' and K.HANDICAP or 0) end

function L.start(e, name)
  e.rank, e.started = L.rank_of(e), now
  local output = min(e.o, K.OUTPUT_CAP)
  local average = L.get(e.n_avg)
  if average > 0 then output = min(output, average - 1) end -- stored plus one: 0 means none
  local p = L.user_policy(e.cls, e.user)
  local share = max(1, p and tonumber(p[4]) or 1)
  local cost = (e.u + 2 * output) * 1000
  if e.is_queued then L.unqueue(e) end
  e.is_queued = nil
  L.hold(e, name, floor(cost / share), true)
  if e.gateway ~= gateway then
    e.accepted = 0
    L.add('w:' .. e.gateway, 1)
  end
  if e.cls == 'b' then L.open_window(e.flow, e.cls, e.user) end
  L.tell(e.gateway, table.concat({
    'S', e.id, name, L.text(e.seq), L.text(e.arrived), L.opt(e.since), L.text(e.rank), L.text(now),
    L.text(e.charge),
  }, '\t'))
end

function L.ref_in(member) return member:sub(30) end -- rank 13, sequence 15, tab

-- Walks a sorted set of heads in order until `take` says stop; bounded.
function L.walk(key, by_rank, take)
  local from, size = 0, 4 -- it is nearly always the first
  while from < K.MOST_SCANNED do
    local page
    if by_rank then
      page = call('ZRANGEBYSCORE', key, '-inf', L.text(now), 'LIMIT', from, size)
    else
      page = call('ZRANGE', key, from, from + size - 1)
    end
    for _, member in ipairs(page) do
      local e = L.load_entry(L.ref_in(member))
      if e and take(e) then return e end
    end
    if #page < size then return nil end
    from, size = from + size, 32
  end
end

function L.before(a, b) -- by rank, start of ageing, sequence
  local x, y = L.rank_of(a), L.rank_of(b)
  if x ~= y then return x < y end
  x, y = a.since or now, b.since or now
  if x ~= y then return x < y end
  return a.seq < b.seq
end

function L.pick(pool, admissible)
  local candidate
  local p = pools[pool]
  if L.get(p.batch.pq) > 0 then
    candidate = L.walk(p.k_ready, true, admissible)
      or L.walk(p.k_batch, false, admissible)
  end
  if L.get(p.chat.pq) == 0 then return candidate end
  local chosen = L.walk(p.k_chats, false, function(e)
    return (not candidate or L.before(e, candidate)) and admissible(e)
  end)
  return chosen or candidate
end

function L.has_free_slot(pool)
  for _, r in ipairs(pools[pool].up) do
    if L.get(r.n_held) < r.now then return true end
  end
  return false
end

function L.at_bound(e)
  return (e.bypassed or 0) >= K.MOST_BYPASSED
    or (e.first_bypass and now - e.first_bypass >= K.LONGEST_BYPASS)
end

function L.start_one(pool)
  if L.get(pools[pool].n_ready) == 0 or not L.has_free_slot(pool) then return false end
  if L.is_all_kept(pool) then return false end
  local reserved = { slots = {}, prefill = {}, batch = false }
  local aside, is_aside = {}, {}
  for _ = 1, K.MOST_SET_ASIDE do
    local memo = {}
    local function admissible(e)
      if is_aside[e.ref] then return false end
      local m = memo[e.ref]
      if not m then
        local name, reason, big = L.fit(e, reserved)
        m = { name = name, reason = reason, big = big }
        memo[e.ref] = m
      end
      return m.name ~= nil or m.big
    end
    local e = L.pick(pool, admissible)
    if not e then return false end
    local m = memo[e.ref]
    if m.name then
      L.fetch_for({ e })
      e.is_queued = true
      L.start(e, m.name)
      for _, passed in ipairs(aside) do
        passed.bypassed = (passed.bypassed or 0) + 1
        passed.first_bypass = passed.first_bypass or now
        L.changed(passed)
      end
      return true
    end
    aside[#aside + 1] = e
    is_aside[e.ref] = true
    if L.at_bound(e) then L.reserve(e, m.reason, reserved) end
  end
  return false
end

function L.dispatch()
  for _, pool in ipairs(pool_names) do
    local lent = L.is_lent(pool) and 1 or 0
    if L.get(pools[pool].n_lent) ~= lent then
      L.set(pools[pool].n_lent, lent)
      L.touch_pool(pool, 'b')
    end
  end
  L.settle_flows()
  if not L.is_open() then return end
  for _, pool in ipairs(pool_names) do
    while starts < K.MOST_STARTS and L.start_one(pool) do
      starts = starts + 1
      L.settle_flows()
    end
  end
end
