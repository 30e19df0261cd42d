
------------------------------------------------------------------------------- the rarer verbs

function L.is_older(name, version)
  local known = L.policy(name)
  return known and tonumber(known[1]) > version
end

function L.write_policy(name, line)
  call('HSET', K.CONFIG, name, line)
  policies[name] = L.fields(line)
end

function operations.K(owner_key, line) -- caps of a key in a class
  local f, name = L.fields(line), 'k\t' .. owner_key
  if L.is_older(name, tonumber(f[1])) or call('HGET', K.CONFIG, name) == line then return end
  L.write_policy(name, line)
  local waiting = {}
  for _, flow in ipairs(L.flows_of_key(owner_key)) do
    L.touch(flow:match('\t(.*)$'))
    local start = owner_key:sub(3) .. '\t'
    for _, member in ipairs(f[2] ~= '1' and call('ZRANGE', prefix .. 'q:' .. flow, 0, -1) or {}) do
      if member:sub(1, #start) == start then
        waiting[#waiting + 1] = L.load_entry(member:sub(#start + 1)) or nil
      end
    end
  end
  table.sort(waiting, function(a, b) return a.seq < b.seq end)
  for _, e in ipairs(waiting) do L.revoke(e) end
end

function operations.U(owner_user, line) -- caps and share of a user in a class
  local f, name = L.fields(line), 'u\t' .. owner_user
  if L.is_older(name, tonumber(f[1])) or call('HGET', K.CONFIG, name) == line then return end
  L.write_policy(name, line)
  L.touch(owner_user)
  if owner_user:sub(1, 1) == 'b' then
    local user = owner_user:sub(3)
    for _, pool in ipairs(pool_names) do L.open_window(pool .. '\t' .. owner_user, 'b', user) end
  end
end

function operations.L(pool, line) -- how a pool is shared
  local known = pools[pool]
  if known and known.version > tonumber(L.fields(line)[1]) then return end
  call('HSET', K.FLEET, 'p\t' .. pool, line)
  L.refresh_fleet()
end

function operations.V(name, line) -- a replica of the books
  local known = replicas[name]
  if known and known.registered and known.version > tonumber(L.fields(line)[1]) then return end
  call('HSET', K.FLEET, 'r\t' .. name, line)
  call('HDEL', K.FLEET, 'x\t' .. name)
  L.refresh_fleet()
end

function operations.X(name) -- a replica is forgotten
  local known = replicas[name]
  if not known then return end
  for _, field in ipairs(call('HKEYS', K.FLEET)) do
    if field == 'r\t' .. name or field == 'i\t' .. name or field:sub(1, #name + 3) == 'o\t' .. name .. '\t' then
      call('HDEL', K.FLEET, field)
    end
  end
  if L.get('r:' .. name) > 0 then call('HSET', K.FLEET, 'x\t' .. name, known.pool) end
  L.refresh_fleet()
end

function operations.O(name, line) -- a replica as this process sees it
  local known = replicas[name]
  if not known or not known.registered then return end
  local f = L.fields(line) -- accepts, slots, affine, incarnation
  local field, view = 'o\t' .. name .. '\t' .. gateway, f[1] .. '\t' .. f[2] .. '\t' .. f[3]
  local is_news = call('HGET', K.FLEET, field) ~= view
  if is_news then call('HSET', K.FLEET, field, view) end
  if f[4] ~= '' and f[4] ~= known.incarnation then
    call('HSET', K.FLEET, 'i\t' .. name, f[4])
    is_news = true
  end
  if is_news then L.refresh_fleet() end
end

function operations.A(ms) -- advance ledger time
  ms = tonumber(ms)
  if not testing or ms <= 0 then return end
  now = now + ms
  for _, name in ipairs(call('ZRANGE', K.HEARD, 0, -1)) do call('ZINCRBY', K.HEARD, ms, name) end
  L.sweep()
end

function operations.H(id, line) -- adopt a lease: its header, a carriage return, the ticket
  local ref = gateway .. '\t' .. id
  if L.load_entry(ref) then return end
  local e = L.read_entry(gateway, id, line)
  local charge, reads = e.charge, e.reading
  e.charge, e.reading = 0, 0
  if not replicas[e.replica] then
    call('HSET', K.FLEET, 'x\t' .. e.replica, e.pool)
    L.refresh_fleet()
  end
  e.deadline, e.rank = e.arrived + e.ttl, L.rank_of(e)
  seq = max(seq, e.seq)
  L.enter(e)
  L.hold(e, e.replica, charge, reads > 0)
  L.reserve_quota(L.charges_of(e.charges), true)
end

-- An emptied ledger opens before its time once it has heard of all that ran: AWAITED holds "0" for
-- each process whose word stands, "1" for one that another knew of, and "*" when one was named at
-- all. Who knows of nobody cannot say that nobody is missing; and who joined in the last moment may
-- be known to nobody, which is why it never opens within EARLIEST.
function operations.N(_, names) -- whom an adopting process knows of
  if L.is_open() then return end
  for _, name in ipairs(L.fields(names)) do
    call('HSETNX', K.AWAITED, name, '1')
    call('HSET', K.AWAITED, '*', '0')
  end
end

function L.has_heard_all()
  call('HSET', K.AWAITED, gateway, '0')
  if now < opens - K.LIMIT + K.EARLIEST or call('HEXISTS', K.AWAITED, '*') == 0 then
    return false
  end
  for _, state in ipairs(call('HVALS', K.AWAITED)) do
    if state == '1' then return false end
  end
  return true
end

function L.tell_roster(to) -- who is at work, to all of them or one
  local names = call('ZRANGE', K.HEARD, 0, -1)
  local line = 'N\t' .. concat(names, '\t')
  for _, name in ipairs(names) do
    if not to or name == to then L.tell(name, line) end
  end
end

function operations.W(id, line) -- adopt a waiting ticket
  if L.load_entry(gateway .. '\t' .. id) then return end
  local e = L.read_entry(gateway, id, line)
  e.deadline = e.arrived + e.ttl
  seq = max(seq, e.seq)
  L.reserve_quota(L.charges_of(e.charges), true)
  L.take_in(e)
end

function operations.Q(_, line) -- where counted limits stand
  L.tell_limits('', L.charges_of(line))
end

function operations.D() -- everything but the policies of those who have nothing here
  local function row(table_name, field, value)
    answers[#answers + 1] = 'D\t' .. table_name .. '\r' .. field .. '\r' .. value
  end
  row('meta', 'now', L.text(now))
  row('meta', 'seq', L.text(seq))
  for _, key in ipairs({ K.COUNTS, K.SERVICE, K.FLEET, K.HEADS }) do
    local raw = call('HGETALL', key)
    for i = 1, #raw, 2 do row(key:sub(#prefix + 1), raw[i], raw[i + 1]) end
  end
  local owners = {}
  for _, name in ipairs(call('ZRANGE', K.HEARD, 0, -1)) do
    local raw = call('HGETALL', prefix .. 'g:' .. name)
    for i = 1, #raw, 2 do
      row('g:' .. name, raw[i], raw[i + 1])
      local key, user, cls = raw[i + 1]:match('\r([^\t]*)\t([^\t]*)\t([^\t]*)')
      local e = raw[i + 1]:sub(1, 1) == '\t' and L.load_entry(name .. '\t' .. raw[i])
      local home = e and e.session ~= '' and L.home_of(e) or ''
      if home ~= '' then row('home', e.session, home) end
      owners['k\t' .. cls .. '\t' .. key] = true
      owners['u\t' .. cls .. '\t' .. user] = true
    end
  end
  for name in pairs(owners) do
    local line = call('HGET', K.CONFIG, name)
    if line then row('cfg', name, line) end
  end
end
