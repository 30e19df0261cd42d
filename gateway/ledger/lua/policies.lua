
------------------------------------------------------------------------------- policies

function L.policy(name)
  local p = policies[name]
  if p == nil then
    local line = call('HGET', K.CONFIG, name)
    p = line and L.fields(line) or false
    policies[name] = p
  end
  return p
end
function L.key_policy(cls, key) -- version, live, in flight, queued, is default
  return L.policy('k\t' .. cls .. '\t' .. key)
end
function L.user_policy(cls, user) -- version, in flight or '', queued, share
  return L.policy('u\t' .. cls .. '\t' .. user)
end

-- Pools: version, batch slots, idle ones, idle after, queue bounds. Replicas: as placing.py. What
-- FLEET says of them is worked out when it changes and kept in META; a step reads only that.

function L.reserved_of(line) -- "group:slots,group:slots"
  if line == '' then return nil end
  local out = {}
  for group, slots in line:gmatch('([^,]*):(%d+)') do
    out[#out + 1] = { group = group, slots = tonumber(slots) }
  end
  return out
end

function L.name_pool(name) -- the counters of a pool, by name
  local p = pools[name]
  p.batch = { pt = 'pt:' .. name .. '\tb', pq = 'pq:' .. name .. '\tb' }
  p.chat = { pt = 'pt:' .. name .. '\ti', pq = 'pq:' .. name .. '\ti' }
  p.n_ce, p.n_lent, p.n_ready = 'ce:' .. name, 'lent:' .. name, 'ready:' .. name
  p.n_su, p.n_down, p.n_b = 'su:' .. name, 'down:' .. name, 'b:' .. name
  p.k_ready, p.k_chats = prefix .. 'ready:' .. name, prefix .. 'fair:' .. name .. '\ti'
  p.k_batch = prefix .. 'fair:' .. name .. '\tb'
  pool_names[#pool_names + 1] = name
end

function L.name_replica(name)
  local r = replicas[name]
  r.name, r.n_held, r.n_read, r.n_long = name, 'r:' .. name, 'rp:' .. name, 'rl:' .. name
  replica_names[#replica_names + 1] = name
end

function L.list_fleet() -- by pool: its replicas, and those of them that take work, by name
  for _, pool in pairs(pools) do pool.all, pool.up = {}, {} end
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    local p = pools[r.pool]
    if p then
      p.all[#p.all + 1] = r
      if r.accepts then p.up[#p.up + 1] = r end
    end
  end
end

function L.load_fleet(lines)
  fleet_line = lines
  pools, pool_names, replicas, replica_names = {}, {}, {}, {}
  for kind, name, rest in (lines or ''):gmatch('(%a)\t([^\t\n]*)\t([^\n]*)\n') do
    local f = L.fields(rest)
    if kind == 'p' then
      pools[name] = {
        version = tonumber(f[1]), busy = L.number(f[2]), idle = L.number(f[3]),
        idle_after = tonumber(f[4]), bound_i = tonumber(f[5]), bound_b = tonumber(f[6]),
        reserved = L.reserved_of(f[7] or ''),
      }
      L.name_pool(name)
    else
      replicas[name] = {
        version = tonumber(f[1]), pool = f[2], slots = tonumber(f[3]), budget = tonumber(f[4]),
        now = tonumber(f[5]), accepts = f[6] == '1', affine = f[7] == '1', registered = f[8] == '1',
        incarnation = f[9],
      }
      L.name_replica(name)
    end
  end
  L.list_fleet()
end

------------------------------------------------------------------------------- shares of a pool

function L.is_lent(pool)
  local p = pools[pool]
  if L.get(p.chat.pt) > 0 then return false end
  local ended = L.get(p.n_ce)
  return ended == 0 or now - ended >= p.idle_after
end

function L.batch_slots(busy, idle, total, lent)
  if total <= 0 then return 0 end
  local wanted
  if lent then wanted = idle or max(1, total - 1) else wanted = busy or max(1, floor(total / 4)) end
  if total > 1 then return min(wanted, total - 1) end
  return min(wanted, 1)
end

function L.batch_limit(pool)
  local p = pools[pool]
  return L.batch_slots(p.busy, p.idle, L.get(p.n_su), L.is_lent(pool))
end

function L.user_cap(cap, cls, total)
  if cap then return cap end
  if cls == 'b' then return K.BATCH_USER_CAP end
  return max(1, min(4, floor((total + 1) / 2)))
end

function L.window_size(user)
  local p = L.user_policy('b', user)
  return L.user_cap(p and L.number(p[2]) or nil, 'b', 0)
end
