
------------------------------------------------------------------------------- flows

-- The queue of a flow holds "key, gateway, id" by sequence. HEADS: flow -> "rank, sequence, tab,
-- reference" of the head that represents it, a member of fair and ready; empty when the flow is
-- parked. Every flow with something queued has a field.
-- In the cache a head is false where there is no field.
function L.touch(owner_user) touched[owner_user] = true end

function L.head(flow)
  local line = heads[flow]
  if line == nil then
    line = call('HGET', K.HEADS, flow)
    heads[flow] = line
  end
  return line
end

function L.has_own_room(e)
  local key, user = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user)
  if not key or not user or key[2] ~= '1' then return false end
  local lent = e.cls == 'b' and pools[e.pool] and L.is_lent(e.pool)
  if not (lent and key[5] == '1') then
    if L.get(e.n_k) + e.w > tonumber(key[3]) then return false end
  end
  local cap = L.number(user[2])
  if lent and not cap then return true end
  return L.get(e.n_u) + e.w <= L.user_cap(cap, e.cls, L.get('su:' .. e.pool))
end

-- The oldest of the keys' heads that has room of its own; `queued` is the length of the flow.
function L.head_of(flow, queued)
  local queue, shut, from, size = prefix .. 'q:' .. flow, {}, 0, 4
  while from < K.MOST_SCANNED do
    local page = call('ZRANGE', queue, from, from + size - 1)
    for _, member in ipairs(page) do
      local at = member:find('\t', 1, true)
      local key = member:sub(1, at - 1)
      if not shut[key] then
        local e = L.load_entry(member:sub(at + 1))
        L.fetch_for({ e })
        if L.has_own_room(e) then return e end
        shut[key] = true
        queued = queued - L.get(e.n_fk)
        if queued <= 0 then return nil end -- all others stand behind keys that are full
      end
    end
    if #page < size then return nil end
    from, size = from + size, 32
  end
end

function L.evaluate(flow, owner_user, p, cls)
  local fair, queued = cls == 'b' and p.k_batch or p.k_chats, L.get('n:' .. flow)
  local line = L.head(flow)
  local old = line ~= '' and line
  local e = queued > 0 and L.head_of(flow, queued)
  local new
  if e then
    local rank = K.NEVER
    if e.since then rank = format('%013.0f', e.since + (cls == 'b' and K.HANDICAP or 0)) end
    new = rank .. L.padded(e.seq) .. '\t' .. e.ref
  end
  if old and old ~= new then
    call('ZREM', fair, old)
    if cls == 'b' then call('ZREM', p.k_ready, old) end
  end
  if new and (old ~= new or service_dirty[owner_user]) then
    call('ZADD', fair, L.service_of(owner_user), new)
    if cls == 'b' and e.since and old ~= new then
      call('ZADD', p.k_ready, e.since + K.HANDICAP, new)
    end
  end
  if (old and 1 or 0) ~= (new and 1 or 0) then L.add(p.n_ready, new and 1 or -1) end
  local now_line = queued > 0 and (new or '')
  if now_line ~= line then
    heads[flow] = now_line
    heads_dirty[flow] = true
  end
end

function L.settle_flows()
  local owner_user = next(touched)
  if not owner_user then return end
  local owners = touched
  touched = {}
  for owner in pairs(owners) do
    local queued = 'uq:' .. owner
    if L.get(queued) > 0 or counts_dirty[queued] then
      local cls = owner:sub(1, 1)
      for _, pool in ipairs(pool_names) do
        local flow = pool .. '\t' .. owner
        local n = 'n:' .. flow
        if L.get(n) > 0 or counts_dirty[n] then L.evaluate(flow, owner, pools[pool], cls) end
      end
    end
  end
end

function L.flush_heads()
  local sets, drops = {}, {}
  for flow in pairs(heads_dirty) do
    local line = heads[flow]
    if line then
      local n = #sets
      sets[n + 1], sets[n + 2] = flow, line
      if n >= 1000 then
        call('HSET', K.HEADS, unpack(sets))
        sets = {}
      end
    else
      drops[#drops + 1] = flow
      if #drops >= 1000 then
        call('HDEL', K.HEADS, unpack(drops))
        drops = {}
      end
    end
  end
  if #sets > 0 then call('HSET', K.HEADS, unpack(sets)) end
  if #drops > 0 then call('HDEL', K.HEADS, unpack(drops)) end
end

------------------------------------------------------------------------------- those active

-- V without the charges of what is in flight: what is known to have been used. It stands in act:,
-- of all and only the active; written before it is read, and at the end of the step.
function L.settled(owner_user) return L.service_of(owner_user) - L.get('uc:' .. owner_user) end
function L.stand(owner_user) standing[owner_user] = true end

function L.flush_standing()
  local sets, drops = { i = {}, b = {} }, { i = {}, b = {} }
  for owner in pairs(standing) do
    local cls = owner:sub(1, 1)
    if L.get('ut:' .. owner) > 0 then
      local list = sets[cls]
      local n = #list
      list[n + 1], list[n + 2] = L.settled(owner), owner
    else
      local list = drops[cls]
      list[#list + 1] = owner
    end
  end
  standing = {}
  for cls, list in pairs(sets) do
    for from = 1, #list, 1000 do
      call('ZADD', prefix .. 'act:' .. cls, unpack(list, from, min(#list, from + 999)))
    end
  end
  for cls, list in pairs(drops) do
    for from = 1, #list, 1000 do
      call('ZREM', prefix .. 'act:' .. cls, unpack(list, from, min(#list, from + 999)))
    end
  end
end

-- V changes by n, of it by `charged` through charges of leases.
function L.serve(owner_user, n, charged)
  L.add('uc:' .. owner_user, charged)
  if n ~= 0 then
    service[owner_user] = L.service_of(owner_user) + n
    service_dirty[owner_user] = true
    L.touch(owner_user)
  end
  if n ~= charged then L.stand(owner_user) end
end

-- Fills the accrual window of a batch flow: its oldest tickets begin to age.
function L.open_window(flow, cls, user, but)
  if cls ~= 'b' then return end
  local size = L.window_size(user)
  if size <= 0 then return end
  for _, member in ipairs(call('ZRANGE', prefix .. 'q:' .. flow, 0, size - 1)) do
    local e = L.load_entry(member:sub(member:find('\t', 1, true) + 1))
    if e and not e.since then
      e.since = now
      L.changed(e)
      L.touch(e.owner_user)
      if e ~= but then
        L.tell(e.gateway, concat({ 'Q', e.id, L.text(e.seq), L.text(e.arrived), L.text(now) }, '\t'))
      end
    end
  end
end
