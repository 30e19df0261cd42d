
------------------------------------------------------------------------------- affinity

function L.home_of(e)
  if e.session == '' then return '' end
  local line = call('GET', prefix .. 's:' .. e.session)
  if not line then return '' end
  local f = L.fields(line) -- replica, incarnation, end
  local r = replicas[f[1]]
  if tonumber(f[3]) <= now or (r and r.incarnation or '') ~= f[2] then return '' end
  return f[1]
end

function L.bind(e)
  if e.session == '' then return end
  local r = replicas[e.replica]
  local line = table.concat({ e.replica, r and r.incarnation or '', L.text(now + K.BINDING) }, '\t')
  -- The key's own expiry only clears away what ledger time has ended long before.
  call('SET', prefix .. 's:' .. e.session, line, 'PX', K.BINDING * 2)
end

------------------------------------------------------------------------------- placing

function L.in_order(e, of)
  local up = {}
  for i, r in ipairs(of) do up[i] = r end
  if e.order == '' or e.session == '' then
    table.sort(up, function(a, b)
      local x, y = L.get(a.n_held), L.get(b.n_held)
      if x ~= y then return x < y end
      return a.name < b.name
    end)
    return up
  end
  local place, n = {}, 0
  for name in e.order:gmatch('[^,]+') do
    n = n + 1
    place[name] = n
  end
  table.sort(up, function(a, b)
    local x, y = place[a.name] or n + 1, place[b.name] or n + 1
    if x ~= y then return x < y end
    return a.name < b.name
  end)
  return up
end

function L.refusal(e, r, reserved)
  local held = L.get(r.n_held)
  if held + e.w > r.now then
    if held + e.w <= r.slots then return 'kv' end
    return 'slots'
  end
  if reserved.slots[r.name] then return 'slots' end
  if e.u == 0 then return nil end
  if reserved.prefill[r.name] then return 'prefill' end
  if e.u >= K.LONG_PROMPT and L.get(r.n_long) > 0 then return 'prefill' end
  if L.get(r.n_read) + L.prefill_cost(r, e.u) > max(1, r.budget) then return 'prefill' end
  return nil
end

-- Rule 7: is what is free kept for other groups than this one? As is_kept of state.py.
function L.is_kept(pool, weight, group)
  local free, held = 0, {}
  for _, r in ipairs(pools[pool].up) do
    free = free + max(0, r.now - L.get(r.n_held))
    for i, one in ipairs(pools[pool].reserved) do
      held[i] = (held[i] or 0) + L.get('gh:' .. r.name .. '\t' .. one.group)
    end
  end
  local kept = 0
  for i, one in ipairs(pools[pool].reserved) do
    if one.group ~= group then kept = kept + max(0, one.slots - (held[i] or 0)) end
  end
  return kept > 0 and free - kept < weight
end

function L.is_all_kept(pool)
  local reserved = pools[pool].reserved
  if not reserved then return false end
  for _, one in ipairs(reserved) do
    if L.get('gq:' .. pool .. '\t' .. one.group) > 0 then return false end
  end
  return L.is_kept(pool, 1)
end

-- Returns where the entry may start, or nothing and what blocks it and whether only its size does.
function L.fit(e, reserved)
  local p = pools[e.pool]
  local up = p and p.up
  if not up or #up == 0 then return nil, 'no_replica', false end
  if e.cls == 'b' then
    if L.get(p.n_b) + e.w > L.batch_limit(e.pool) then return nil, 'batch_pool', e.w > 1 end
    if reserved.batch then return nil, 'batch_pool', false end
  end
  if p.reserved and L.is_kept(e.pool, e.w, e.group) then return nil, 'reserved', false end
  if #up == 1 then -- the commonest house by far: nothing is to choose
    local reason = L.refusal(e, up[1], reserved)
    if not reason then return up[1].name end
    return nil, reason, reason == 'prefill' or e.w > 1
  end
  if e.avoid ~= '' then
    local others = {}
    for _, r in ipairs(up) do
      if r.name ~= e.avoid then others[#others + 1] = r end
    end
    up = others
  end
  local why, total, fitting, blockers = {}, 0, {}, {}
  for _, r in ipairs(up) do
    total = total + L.get(r.n_held)
    local reason = L.refusal(e, r, reserved)
    if reason then
      why[r.name] = reason
      blockers[reason] = true
    end
  end
  for _, r in ipairs(L.in_order(e, up)) do
    if not why[r.name] then fitting[#fitting + 1] = r end
  end
  if #fitting == 0 then
    local reason = blockers.prefill and 'prefill' or blockers.kv and 'kv' or 'slots'
    return nil, reason, reason == 'prefill' or e.w > 1
  end
  local bound = max(4, floor((5 * (total + e.w) + 4 * #up - 1) / (4 * #up)))
  local home = L.home_of(e)
  for _, r in ipairs(up) do
    if r.name == home and r.affine and L.get(r.n_held) + e.w <= bound then
      if not why[r.name] then return r.name end
      if e.home_wait > 0 and (not e.pick_since or now - e.pick_since < e.home_wait) then
        if not e.pick_since then
          e.pick_since = now
          L.changed(e)
        end
        return nil, 'slots', false
      end
    end
  end
  for _, r in ipairs(fitting) do
    if L.get(r.n_held) + e.w <= bound then return r.name end
  end
  return fitting[1].name
end

function L.reserve(e, reason, reserved)
  if reason == 'batch_pool' then
    reserved.batch = true
    return
  end
  local best, best_key
  local function better(key)
    if not best_key then return true end
    for i = 1, #key do
      if key[i] ~= best_key[i] then return key[i] < best_key[i] end
    end
    return false
  end
  for _, r in ipairs(pools[e.pool].up) do
    local name = r.name
    if r.now >= e.w and not reserved.slots[name] and not reserved.prefill[name] then
      local held, key = L.get(r.n_held), nil
      if reason == 'prefill' then
        key = { held + e.w <= r.now and 0 or 1, L.get(r.n_read), name }
      else
        key = { held - r.now, name }
      end
      if better(key) then best, best_key = name, key end
    end
  end
  if best then reserved[reason == 'prefill' and 'prefill' or 'slots'][best] = true end
end
