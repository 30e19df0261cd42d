
------------------------------------------------------------------------------- fetching together

-- Reads the named fields of a hash that `known` does not hold yet, and gives each to `put`.
function L.fetch(key, names, known, put)
  local missing, n = {}, 0
  local function read()
    if n == 0 then return end
    local values = call('HMGET', key, unpack(missing))
    for i = 1, n do put(missing[i], values[i]) end
    missing, n = {}, 0
  end
  for _, name in ipairs(names) do
    if known[name] == nil then
      known[name] = false
      n = n + 1
      missing[n] = name
      if n >= 1000 then read() end
    end
  end
  read()
end

-- fetched: owners of tickets of whom everything is here.
local function put_count(name, value) counts[name] = value and tonumber(value) or 0 end
local function put_service(name, value) service[name] = value and tonumber(value) or 0 end
local function put_policy(name, line) policies[name] = line and L.fields(line) or false end
local function put_head(flow, line) heads[flow] = line end

-- All that starting, queueing or ending these tickets will touch, in four commands.
function L.fetch_for(list, more)
  local c, p, v, h, n = more or {}, {}, {}, {}, 0
  local m = #c
  for _, e in ipairs(list) do
    local tag = e.flow .. '\t' .. e.key
    if not fetched[tag] then
      fetched[tag] = true
      c[m + 1], c[m + 2], c[m + 3], c[m + 4], c[m + 5] = e.n_k, e.n_kq, e.n_fk, e.n_u, e.n_uq
      c[m + 6], c[m + 7], c[m + 8], c[m + 9], c[m + 10] = e.n_ut, e.n_uc, e.n_n, e.n_avg, e.n_pq
      c[m + 11], c[m + 12] = e.n_pt, e.n_hold
      m = m + 12
      n = n + 1
      p[2 * n - 1], p[2 * n] = 'k\t' .. e.owner_key, 'u\t' .. e.owner_user
      v[n], h[n] = e.owner_user, e.flow
    end
  end
  if m > 0 then L.fetch(K.COUNTS, c, counts, put_count) end
  if n > 0 then
    L.fetch(K.CONFIG, p, policies, put_policy)
    L.fetch(K.SERVICE, v, service, put_service)
    L.fetch(K.HEADS, h, heads, put_head)
  end
end

-- Before anything else: the tickets this call speaks of, and the counters of the house.
-- arriving: by place of the operation in ARGV, the entry it would make.
function L.fetch_all()
  local ids, tickets, names = {}, {}, {
    's:' .. gateway, 'a:' .. gateway, 'w:' .. gateway, 'il:' .. gateway,
  }
  for i = 7, #ARGV, 3 do
    local verb, id = ARGV[i], ARGV[i + 1]
    if verb == 'E' then
      local e = L.new_entry(id, ARGV[i + 2])
      arriving[i] = e
      tickets[#tickets + 1] = e
      ids[#ids + 1] = id
    elseif verb == 'R' or verb == 'C' or verb == 'P' or verb == 'B' then
      ids[#ids + 1] = id
    end
  end
  local n = #ids
  for from = 1, n, 1000 do
    local lines = call('HMGET', prefix .. 'g:' .. gateway, unpack(ids, from, min(n, from + 999)))
    for i, line in ipairs(lines) do
      local id = ids[from + i - 1]
      if not line then
        entries[gateway .. '\t' .. id] = false
      elseif entries[gateway .. '\t' .. id] == nil then
        tickets[#tickets + 1] = L.read_entry(gateway, id, line)
      end
    end
  end
  for _, name in ipairs(pool_names) do
    local p, at = pools[name], #names
    names[at + 1], names[at + 2], names[at + 3] = p.n_lent, p.n_ready, p.n_ce
    names[at + 4], names[at + 5], names[at + 6] = p.chat.pt, p.n_su, p.n_down
    names[at + 7], names[at + 8], names[at + 9] = p.chat.pq, p.batch.pq, p.n_b
  end
  for _, name in ipairs(replica_names) do
    local r, at = replicas[name], #names
    names[at + 1], names[at + 2], names[at + 3] = r.n_held, r.n_read, r.n_long
  end
  L.fetch_for(tickets, names)
end
