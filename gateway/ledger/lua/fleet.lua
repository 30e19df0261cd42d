
------------------------------------------------------------------------------- the fleet anew

function L.fleet_lines(pool_lines)
  local out = {}
  for _, name in ipairs(pool_names) do
    out[#out + 1] = 'p\t' .. name .. '\t' .. pool_lines[name] .. '\n'
  end
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    out[#out + 1] = concat({
      'r', name, L.text(r.version), r.pool, L.text(r.slots), L.text(r.budget), L.text(r.now),
      r.accepts and '1' or '0', r.affine and '1' or '0', r.registered and '1' or '0',
      r.incarnation or '',
    }, '\t') .. '\n'
  end
  return concat(out)
end

function L.read_fleet() -- FLEET as it was told: policies, and what each process sees
  local raw, seen, gone_into, lines = call('HGETALL', K.FLEET), {}, {}, {}
  pools, pool_names, replicas, replica_names = {}, {}, {}, {}
  for i = 1, #raw, 2 do
    local kind, f = raw[i]:sub(1, 1), L.fields(raw[i + 1])
    local name = raw[i]:sub(3)
    if kind == 'p' then
      pools[name] = {
        version = tonumber(f[1]), busy = L.number(f[2]), idle = L.number(f[3]),
        idle_after = tonumber(f[4]), bound_i = tonumber(f[5]), bound_b = tonumber(f[6]),
        reserved = L.reserved_of(f[7] or ''),
      }
      lines[name] = raw[i + 1]
    elseif kind == 'r' then
      replicas[name] = {
        version = tonumber(f[1]), pool = f[2], slots = tonumber(f[3]), budget = tonumber(f[4]),
        now = tonumber(f[3]), accepts = true, affine = true, registered = true,
      }
    elseif kind == 'x' then
      gone_into[name] = f[1] -- removed, but still holding leases
    elseif kind == 'i' then
      seen[#seen + 1] = { replica = name, incarnation = f[1] }
    elseif kind == 'o' then
      local at = name:find('\t', 1, true)
      seen[#seen + 1] = {
        replica = name:sub(1, at - 1), accepts = f[1] == '1', slots = L.number(f[2]),
        affine = f[3] == '1', view = true,
      }
    end
  end
  for name, pool in pairs(gone_into) do
    if not replicas[name] then
      replicas[name] = {
        version = 0, pool = pool, slots = 0, budget = 0, now = 0, accepts = false, affine = false,
      }
    end
  end
  for _, s in ipairs(seen) do
    local r = replicas[s.replica]
    if r and r.registered and s.view then
      r.accepts = r.accepts and s.accepts
      r.affine = r.affine and s.affine
      if s.slots then r.now = min(r.now, s.slots) end
    elseif r and s.incarnation then
      r.incarnation = s.incarnation
    end
  end
  return lines
end

function L.refresh_fleet()
  local lines, names, of_pools = L.read_fleet(), {}, {}
  for name in pairs(replicas) do names[#names + 1] = name end
  for name in pairs(pools) do of_pools[#of_pools + 1] = name end
  table.sort(names)
  table.sort(of_pools)
  for _, name in ipairs(names) do L.name_replica(name) end
  for _, name in ipairs(of_pools) do L.name_pool(name) end
  L.list_fleet()
  fleet_line = L.fleet_lines(lines)
  for _, name in ipairs(pool_names) do
    local pool, total = pools[name], 0
    for _, r in ipairs(pool.up) do total = total + r.now end
    if #pool.up > 0 then
      L.comes_up(name)
    elseif L.get(pool.n_down) == 0 then
      L.goes_down(name)
    end
    if L.get(pool.n_su) ~= total then
      L.set(pool.n_su, total)
      L.touch_pool(name, 'i')
      L.touch_pool(name, 'b')
    end
  end
end

function L.touch_pool(pool, cls)
  local start = pool .. '\t' .. cls .. '\t'
  for _, flow in ipairs(call('HKEYS', K.HEADS)) do
    if flow:sub(1, #start) == start then L.touch(flow:sub(#pool + 2)) end
  end
  for flow in pairs(heads_dirty) do -- those that came in this step
    if flow:sub(1, #start) == start then L.touch(flow:sub(#pool + 2)) end
  end
end

------------------------------------------------------------------------------- pools without replica

-- While no replica of a pool takes work, its queued tickets stand by arrival in a:, so that they
-- can be put out when that has lasted too long.
function L.note_stranded(e)
  call('ZADD', prefix .. 'a:' .. e.pool, e.arrived, L.padded(e.seq) .. '\t' .. e.ref)
  due = min(due, max(L.get('down:' .. e.pool), e.arrived) + K.NO_REPLICA)
end

function L.goes_down(pool)
  L.set('down:' .. pool, now)
  for _, cls in ipairs({ 'i', 'b' }) do
    local start = pool .. '\t' .. cls .. '\t'
    if L.get('pq:' .. pool .. '\t' .. cls) > 0 then
      local seen = {}
      for _, flow in ipairs(call('HKEYS', K.HEADS)) do seen[flow] = true end
      for flow in pairs(heads_dirty) do seen[flow] = true end
      for flow in pairs(seen) do
        if flow:sub(1, #start) == start then
          for _, member in ipairs(call('ZRANGE', prefix .. 'q:' .. flow, 0, -1)) do
            local e = L.load_entry(member:sub(member:find('\t', 1, true) + 1))
            if e then L.note_stranded(e) end
          end
        end
      end
    end
  end
end

function L.comes_up(pool)
  if L.get('down:' .. pool) > 0 then
    L.set('down:' .. pool, 0)
    call('DEL', prefix .. 'a:' .. pool)
  end
end
