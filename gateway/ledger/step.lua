-- One step of one gateway process: time, then its operations, each followed by every start it
-- makes possible. The same rules as memory.py, which is the version to read first.
--
-- Rule 1: every loop is bounded. An endless loop after a write blocks the server for everybody.
-- Rule 2: there is no rollback: an operation makes all its checks before its first write.
-- Rule 3: whole numbers only: milliseconds, tokens, milli-tokens. Text by `text`, never tostring
--         of anything that may have fifteen digits.
-- Rule 4: counters change only together with an entry, are read once and written once a step.
--
-- KEYS[1] prefix. ARGV: 1 gateway, 2 previous sequence, 3 sequence, 4 flags (a adopts, 1 this
-- installation has one process, t test switch, f clock stands still but for the test switch),
-- 5 run id of the server, 6 latest ledger time the gateway knows, then three per operation.
-- The answer is one string of lines; see redis.py, which reads it.

local HANDICAP, SILENCE, LIMIT = 600000, 700, 5000
local LONGEST_STEP, NO_REPLICA = 1000, 60000
local BINDING, PLACE_GRACE = 900000, 15000
local LONG_PROMPT, MOST_BYPASSED, LONGEST_BYPASS, MOST_SET_ASIDE = 4096, 8, 20000, 16
local OUTPUT_CAP, DECAY_STEP, MOST_DECAYS = 512, 60000, 200
local DEFAULT_HOLD, SHORTEST_RETRY = 10000, 1000
local BATCH_USER_CAP = 2
local MOST_EVICTIONS, MOST_STARTS, MOST_SCANNED = 256, 512, 512
local NEVER = '9999999999999'

local floor, min, max = math.floor, math.min, math.max
local call = redis.call
local prefix = KEYS[1]
local gateway, previous, sequence = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local adopts = ARGV[4]:find('a', 1, true)
local alone = ARGV[4]:find('1', 1, true)
local testing = ARGV[4]:find('t', 1, true)
local frozen = ARGV[4]:find('f', 1, true)
local run, known_time = ARGV[5], tonumber(ARGV[6])

local META, COUNTS, SERVICE = prefix .. 'meta', prefix .. 'c', prefix .. 'v'
local CONFIG, FLEET, HEADS = prefix .. 'cfg', prefix .. 'fleet', prefix .. 'h'
local HEARD, DEADLINES = prefix .. 'hb', prefix .. 'd'
local PLACES, PLACE_ENDS, PLACE_OF = prefix .. 'pl', prefix .. 'pl:ends', prefix .. 'pl:body'
local USAGE = prefix .. 'usage'

local function text(n) return string.format('%.0f', n) end
local function padded(n) return string.format('%015.0f', n) end
local function number(s) if s and s ~= '' then return tonumber(s) end end
local function opt(n) if n then return text(n) end return '' end
local function fields(line)
  local out, n = {}, 0
  for value in (line .. '\t'):gmatch('([^\t]*)\t') do
    n = n + 1
    out[n] = value
  end
  return out
end

------------------------------------------------------------------------------- counters

local counts, counts_dirty = {}, {}
local function get(name)
  local n = counts[name]
  if n == nil then
    n = tonumber(call('HGET', COUNTS, name)) or 0
    counts[name] = n
  end
  return n
end
local function set(name, n)
  if get(name) ~= n then
    counts[name] = n
    counts_dirty[name] = true
  end
end
local function add(name, n) set(name, get(name) + n) end

local service, service_dirty = {}, {} -- V of class and user
local function service_of(owner)
  local n = service[owner]
  if n == nil then
    n = tonumber(call('HGET', SERVICE, owner)) or 0
    service[owner] = n
  end
  return n
end

local function flush(key, cache, dirty)
  local sets, drops = {}, {}
  for name in pairs(dirty) do
    if cache[name] == 0 then
      drops[#drops + 1] = name
    else
      sets[#sets + 1] = name
      sets[#sets + 1] = text(cache[name])
    end
    if #sets >= 1000 then
      call('HSET', key, unpack(sets))
      sets = {}
    end
    if #drops >= 1000 then
      call('HDEL', key, unpack(drops))
      drops = {}
    end
  end
  if #sets > 0 then call('HSET', key, unpack(sets)) end
  if #drops > 0 then call('HDEL', key, unpack(drops)) end
end

------------------------------------------------------------------------------- ledger time

local meta = call('HMGET', META, 'now', 'clock', 'run', 'opens', 'seq', 'minute')
local now, seq = tonumber(meta[1]), tonumber(meta[5]) or 0
local opens = tonumber(meta[4]) or 0
local clock = known_time
if not frozen then
  local t = call('TIME')
  clock = tonumber(t[1]) * 1000 + floor(tonumber(t[2]) / 1000)
end
local is_new = not now
if is_new then
  now = max(clock, known_time)
  meta[6] = text(floor(now / DECAY_STEP))
else
  local elapsed = frozen and 0 or clock - tonumber(meta[2])
  now = now + min(max(elapsed, 0), LONGEST_STEP)
  if adopts and not frozen then now = max(now, known_time) end
  if elapsed >= LIMIT / 2 then
    -- Nobody called, so nobody is late.
    for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do call('ZADD', HEARD, now, name) end
  end
end
if meta[3] ~= run then
  -- An empty ledger, or a server that may have lost its last second: whatever runs at the engines
  -- must be counted again by its owners before anything new may start.
  opens = alone and now or now + LIMIT
end
local function is_open() return now >= opens end
local function write_meta()
  call('HSET', META, 'now', text(now), 'clock', text(clock), 'run', run, 'opens', text(opens),
    'seq', text(seq), 'minute', meta[6])
end

local stored = tonumber(call('HGET', COUNTS, 's:' .. gateway)) or 0
local expected
if adopts then
  expected = stored ~= tonumber(sequence)
else
  expected = stored == previous and not call('HGET', COUNTS, 'a:' .. gateway)
end
if not expected then
  write_meta()
  return table.concat({ 'ADOPT', sequence, text(now), is_open() and '1' or '0', text(stored) }, '\t')
end
call('ZADD', HEARD, now, gateway)
set('s:' .. gateway, tonumber(sequence))
set('a:' .. gateway, 0)

------------------------------------------------------------------------------- answers

local answers, poked = {}, {}
local function tell(owner, line)
  if owner == gateway then
    answers[#answers + 1] = line
  else
    call('RPUSH', prefix .. 'in:' .. owner, line)
    poked[owner] = true
  end
end

------------------------------------------------------------------------------- policies

local policies = {}
local function policy(name)
  local p = policies[name]
  if p == nil then
    local line = call('HGET', CONFIG, name)
    p = line and fields(line) or false
    policies[name] = p
  end
  return p
end
local function key_policy(cls, key) -- version, live, in flight, queued, is default
  return policy('k\t' .. cls .. '\t' .. key)
end
local function user_policy(cls, user) -- version, in flight or '', queued, share
  return policy('u\t' .. cls .. '\t' .. user)
end

-- Pools: version, batch slots, idle ones, idle after, queue bounds. Replicas: as placing.py.
local pools, pool_names, replicas, replica_names = {}, {}, {}, {}

local function slots_up(pool)
  local total = 0
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == pool and r.accepts then total = total + r.now end
  end
  return total
end

local touch_pool -- re-evaluates the flows of a pool; below

local function refresh_fleet()
  local raw, seen, gone_into = call('HGETALL', FLEET), {}, {}
  pools, pool_names, replicas, replica_names = {}, {}, {}, {}
  for i = 1, #raw, 2 do
    local kind, f = raw[i]:sub(1, 1), fields(raw[i + 1])
    local name = raw[i]:sub(3)
    if kind == 'p' then
      pools[name] = {
        version = tonumber(f[1]), busy = number(f[2]), idle = number(f[3]),
        idle_after = tonumber(f[4]), bound_i = tonumber(f[5]), bound_b = tonumber(f[6]),
      }
      pool_names[#pool_names + 1] = name
    elseif kind == 'r' then
      replicas[name] = {
        name = name, version = tonumber(f[1]), pool = f[2], slots = tonumber(f[3]),
        budget = tonumber(f[4]), now = tonumber(f[3]), accepts = true, affine = true,
        registered = true,
      }
    elseif kind == 'x' then
      gone_into[name] = f[1] -- removed, but still holding leases
    elseif kind == 'i' then
      seen[#seen + 1] = { replica = name, incarnation = f[1] }
    elseif kind == 'o' then
      local at = name:find('\t', 1, true)
      seen[#seen + 1] = {
        replica = name:sub(1, at - 1), accepts = f[1] == '1', slots = number(f[2]),
        affine = f[3] == '1', view = true,
      }
    end
  end
  for name, pool in pairs(gone_into) do
    if not replicas[name] then
      replicas[name] = {
        name = name, pool = pool, slots = 0, budget = 0, now = 0, accepts = false, affine = false,
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
  for name in pairs(replicas) do replica_names[#replica_names + 1] = name end
  table.sort(replica_names)
  table.sort(pool_names)
  for _, pool in ipairs(pool_names) do
    local total, any = 0, false
    for _, name in ipairs(replica_names) do
      local r = replicas[name]
      if r.pool == pool and r.accepts then
        total, any = total + r.now, true
      end
    end
    if any then
      set('down:' .. pool, 0)
    elseif get('down:' .. pool) == 0 then
      set('down:' .. pool, now)
    end
    if get('su:' .. pool) ~= total then
      set('su:' .. pool, total)
      touch_pool(pool, 'i')
      touch_pool(pool, 'b')
    end
  end
end

------------------------------------------------------------------------------- shares of a pool

local function is_lent(pool)
  if get('pt:' .. pool .. '\ti') > 0 then return false end
  local ended = get('ce:' .. pool)
  return ended == 0 or now - ended >= pools[pool].idle_after
end

local function batch_slots(busy, idle, total, lent)
  if total <= 0 then return 0 end
  local wanted
  if lent then wanted = idle or max(1, total - 1) else wanted = busy or max(1, floor(total / 4)) end
  if total > 1 then return min(wanted, total - 1) end
  return min(wanted, 1)
end

local function batch_limit(pool)
  local p = pools[pool]
  return batch_slots(p.busy, p.idle, get('su:' .. pool), is_lent(pool))
end

local function user_cap(cap, cls, total)
  if cap then return cap end
  if cls == 'b' then return BATCH_USER_CAP end
  return max(1, min(4, floor((total + 1) / 2)))
end

local function window_size(user)
  local p = user_policy('b', user)
  return user_cap(p and number(p[2]) or nil, 'b', 0)
end

------------------------------------------------------------------------------- entries

-- An entry is one line in the hash of its gateway: what changes, a carriage return, the ticket.
local entries, entries_dirty = {}, {}
local HEADER = {
  'replica', 'seq', 'arrived', 'deadline', 'since', 'started', 'rank', 'charge', 'reading',
  'accepted', 'pick_since', 'first_bypass', 'bypassed', 'avoid',
}
local IS_TEXT = { replica = true, avoid = true }

local function read_ticket(e, line)
  local f = fields(line)
  e.ticket = line
  e.key, e.user, e.cls, e.pool = f[1], f[2], f[3], f[4]
  e.w, e.u, e.o = tonumber(f[5]), tonumber(f[6]), tonumber(f[7])
  e.ttl, e.home_wait = tonumber(f[8]), tonumber(f[9])
  e.session, e.order, e.place, e.body = f[10], f[11], f[12], f[13]
  e.charges, e.interrupted = f[14], f[15]
  e.owner_key, e.owner_user = e.cls .. '\t' .. e.key, e.cls .. '\t' .. e.user
  e.flow = e.pool .. '\t' .. e.owner_user
  e.queue = prefix .. 'q:' .. e.pool .. '\t' .. e.owner_key
  e.kind = e.pool .. '\t' .. e.cls
end

local function read_entry(owner, id, line)
  local e = { gateway = owner, id = id, ref = owner .. '\t' .. id }
  local cut = line:find('\r', 1, true)
  local f = fields(line:sub(1, cut - 1))
  for i, name in ipairs(HEADER) do
    if IS_TEXT[name] then e[name] = f[i] else e[name] = number(f[i]) end
  end
  read_ticket(e, line:sub(cut + 1))
  entries[e.ref] = e
  return e
end

local function load_entry(ref)
  local e = entries[ref]
  if e == nil then
    local at = ref:find('\t', 1, true)
    local owner, id = ref:sub(1, at - 1), ref:sub(at + 1)
    local line = call('HGET', prefix .. 'g:' .. owner, id)
    if not line then
      entries[ref] = false
      return false
    end
    e = read_entry(owner, id, line)
  end
  return e
end

local function changed(e) entries_dirty[e.ref] = e end

local function load_all(owner)
  local raw, found = call('HGETALL', prefix .. 'g:' .. owner), {}
  for i = 1, #raw, 2 do
    if entries[owner .. '\t' .. raw[i]] == nil then read_entry(owner, raw[i], raw[i + 1]) end
  end
  for _, e in pairs(entries) do -- those made in this step as well
    if e and e.gateway == owner then found[#found + 1] = e end
  end
  table.sort(found, function(a, b) return a.seq < b.seq end)
  return found
end

local function flush_entries()
  for _, e in pairs(entries_dirty) do
    local hash = prefix .. 'g:' .. e.gateway
    if e.gone then
      -- Always: an entry made in this step may stand for one of the same name stored before.
      call('HDEL', hash, e.id)
    else
      local head = {}
      for i, name in ipairs(HEADER) do
        local v = e[name]
        if v == nil then head[i] = '' elseif IS_TEXT[name] then head[i] = v else head[i] = text(v) end
      end
      call('HSET', hash, e.id, table.concat(head, '\t') .. '\r' .. e.ticket)
    end
  end
end

local function own(id, queued)
  local e = load_entry(gateway .. '\t' .. id)
  if e and (e.replica == '') == queued then return e end
end

------------------------------------------------------------------------------- flows

-- HEADS: flow -> "reference, member in fair, member in ready" of the head that represents it, or
-- empty when the flow is parked. Every flow with something queued has a field.
local touched = {}
local function touch(owner_user) touched[owner_user] = true end

touch_pool = function(pool, cls)
  local start = pool .. '\t' .. cls .. '\t'
  for _, flow in ipairs(call('HKEYS', HEADS)) do
    if flow:sub(1, #start) == start then touch(flow:sub(#pool + 2)) end
  end
end

local function has_own_room(e)
  local key, user = key_policy(e.cls, e.key), user_policy(e.cls, e.user)
  if not key or not user or key[2] ~= '1' then return false end
  local lent = e.cls == 'b' and pools[e.pool] and is_lent(e.pool)
  if not (lent and key[5] == '1') then
    if get('k:' .. e.owner_key) + e.w > tonumber(key[3]) then return false end
  end
  local cap = number(user[2])
  if lent and not cap then return true end
  return get('u:' .. e.owner_user) + e.w <= user_cap(cap, e.cls, get('su:' .. e.pool))
end

local function head_of(flow)
  local start = prefix .. 'q:' .. flow:match('^([^\t]*\t[^\t]*\t)')
  for _, key in ipairs(call('ZRANGE', prefix .. 'f:' .. flow, 0, -1)) do
    local first = call('ZRANGE', start .. key, 0, 0)[1]
    local e = first and load_entry(first)
    if e and has_own_room(e) then return e end
  end
end

local function evaluate(flow, owner_user)
  local pool, cls, user = flow:match('^([^\t]*)\t([^\t]*)\t(.*)$')
  local fair, ready = prefix .. 'fair:' .. pool .. '\t' .. cls, prefix .. 'ready:' .. pool
  local old = call('HGET', HEADS, flow)
  local old_fair = old and old ~= '' and old
  local e = get('n:' .. flow) > 0 and head_of(flow)
  local new_fair
  if e then
    local rank = NEVER
    if e.since then rank = string.format('%013.0f', e.since + (cls == 'b' and HANDICAP or 0)) end
    new_fair = rank .. padded(e.seq) .. '\t' .. e.ref
  end
  if old_fair and old_fair ~= new_fair then
    call('ZREM', fair, old_fair)
    if cls == 'b' then call('ZREM', ready, old_fair) end
  end
  if new_fair then
    call('ZADD', fair, service_of(owner_user), new_fair)
    if cls == 'b' and e.since and old_fair ~= new_fair then
      call('ZADD', ready, e.since + HANDICAP, new_fair)
    end
  end
  if (old_fair and 1 or 0) ~= (new_fair and 1 or 0) then
    add('ready:' .. pool, new_fair and 1 or -1)
  end
  if get('n:' .. flow) == 0 then
    if old then call('HDEL', HEADS, flow) end
  elseif (new_fair or '') ~= old then
    call('HSET', HEADS, flow, new_fair or '')
  end
end

local function settle_flows()
  for owner_user in pairs(touched) do
    for _, pool in ipairs(pool_names) do
      local flow = pool .. '\t' .. owner_user
      if get('n:' .. flow) > 0 or call('HEXISTS', HEADS, flow) == 1 then
        evaluate(flow, owner_user)
      end
    end
  end
  touched = {}
end

local function serve(owner_user, n) -- V changes by n
  if n == 0 then return end
  service[owner_user] = service_of(owner_user) + n
  service_dirty[owner_user] = true
  if get('ut:' .. owner_user) > 0 then
    call('ZADD', prefix .. 'act:' .. owner_user:sub(1, 1), service[owner_user], owner_user)
  end
  touch(owner_user)
end

local function open_window(flow, but)
  local pool, cls, user = flow:match('^([^\t]*)\t([^\t]*)\t(.*)$')
  if cls ~= 'b' then return end
  local size = window_size(user)
  if size <= 0 then return end
  for _, ref in ipairs(call('ZRANGE', prefix .. 'w:' .. flow, 0, size - 1)) do
    local e = load_entry(ref)
    if e and not e.since then
      e.since = now
      changed(e)
      touch(e.owner_user)
      if e ~= but then
        tell(e.gateway, table.concat({ 'Q', e.id, text(e.seq), text(e.arrived), text(now) }, '\t'))
      end
    end
  end
end

------------------------------------------------------------------------------- elementary moves

local function enter(e)
  local active = prefix .. 'act:' .. e.cls
  if get('ut:' .. e.owner_user) == 0 then
    local least = call('ZRANGE', active, 0, 0, 'WITHSCORES')[2]
    if least and tonumber(least) > service_of(e.owner_user) then
      service[e.owner_user] = tonumber(least)
      service_dirty[e.owner_user] = true
    end
    call('ZADD', active, service_of(e.owner_user), e.owner_user)
  end
  add('ut:' .. e.owner_user, 1)
  add('pt:' .. e.kind, 1)
  entries[e.ref] = e
  changed(e)
end

local function leave(e)
  add('ut:' .. e.owner_user, -1)
  if get('ut:' .. e.owner_user) == 0 then
    call('ZREM', prefix .. 'act:' .. e.cls, e.owner_user)
  end
  add('pt:' .. e.kind, -1)
  if e.cls == 'i' then set('ce:' .. e.pool, now) end
  e.gone = true
  changed(e)
  entries[e.ref] = false
end

local function set_key_head(e) -- the key's place in its flow is that of its oldest ticket
  local first = call('ZRANGE', e.queue, 0, 0, 'WITHSCORES')
  local flow = prefix .. 'f:' .. e.flow
  if first[2] then call('ZADD', flow, first[2], e.key) else call('ZREM', flow, e.key) end
end

local function count_queued(e, n)
  add('kq:' .. e.owner_key, n)
  add('uq:' .. e.owner_user, n)
  add('pq:' .. e.kind, n)
  add('n:' .. e.flow, n)
  add('w:' .. e.gateway, n)
  touch(e.owner_user)
end

local function queue(e)
  call('ZADD', e.queue, e.seq, e.ref)
  if get('kq:' .. e.owner_key) == 0 then
    call('ZADD', prefix .. 'f:' .. e.flow, e.seq, e.key)
  else
    set_key_head(e)
  end
  if e.cls == 'b' then call('ZADD', prefix .. 'w:' .. e.flow, e.seq, e.ref) end
  call('ZADD', DEADLINES, e.deadline, padded(e.seq) .. '\t' .. e.ref)
  call('ZADD', prefix .. 'a:' .. e.pool, e.arrived, padded(e.seq) .. '\t' .. e.ref)
  count_queued(e, 1)
end

local function unqueue(e)
  call('ZREM', e.queue, e.ref)
  if e.cls == 'b' then call('ZREM', prefix .. 'w:' .. e.flow, e.ref) end
  call('ZREM', DEADLINES, padded(e.seq) .. '\t' .. e.ref)
  call('ZREM', prefix .. 'a:' .. e.pool, padded(e.seq) .. '\t' .. e.ref)
  set_key_head(e)
  count_queued(e, -1)
end

local function count_held(e, n)
  add('r:' .. e.replica, n)
  add('k:' .. e.owner_key, n)
  add('u:' .. e.owner_user, n)
  if e.cls == 'b' then add('b:' .. e.pool, n) end
  touch(e.owner_user)
end

local function prefill_cost(r, tokens) return min(tokens, max(1, r.budget)) end

local function hold(e, name, charge, reads)
  e.replica, e.charge = name, charge
  serve(e.owner_user, charge)
  count_held(e, e.w)
  if reads and e.u > 0 then
    e.reading = prefill_cost(replicas[name], e.u)
    add('rp:' .. name, e.reading)
    if e.u >= LONG_PROMPT then add('rl:' .. name, 1) end
  end
  changed(e)
end

local function stop_reading(e)
  if e.reading and e.reading > 0 then
    add('rp:' .. e.replica, -e.reading)
    if e.u >= LONG_PROMPT then add('rl:' .. e.replica, -1) end
    e.reading = 0
    changed(e)
  end
end

local function accept(e)
  if e.accepted == 0 then
    e.accepted = 1
    add('w:' .. e.gateway, -1)
    changed(e)
  end
end

local function unhold(e)
  stop_reading(e)
  count_held(e, -e.w)
  accept(e)
  local r = replicas[e.replica]
  if r and not r.registered and get('r:' .. e.replica) == 0 then
    call('HDEL', FLEET, 'x\t' .. e.replica)
    refresh_fleet()
  end
  e.replica = ''
  changed(e)
end

local function give_back(e)
  serve(e.owner_user, -e.charge)
  e.charge = 0
  unhold(e)
end

------------------------------------------------------------------------------- affinity

local function home_of(e)
  if e.session == '' then return '' end
  local line = call('GET', prefix .. 's:' .. e.session)
  if not line then return '' end
  local f = fields(line) -- replica, incarnation, end
  local r = replicas[f[1]]
  if tonumber(f[3]) <= now or (r and r.incarnation or '') ~= f[2] then return '' end
  return f[1]
end

local function bind(e)
  if e.session == '' then return end
  local r = replicas[e.replica]
  local line = table.concat({ e.replica, r and r.incarnation or '', text(now + BINDING) }, '\t')
  -- The key's own expiry only clears away what ledger time has ended long before.
  call('SET', prefix .. 's:' .. e.session, line, 'PX', BINDING * 2)
end

------------------------------------------------------------------------------- placing

local function in_order(e, up)
  if e.order == '' or e.session == '' then
    table.sort(up, function(a, b)
      local x, y = get('r:' .. a.name), get('r:' .. b.name)
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

local function refusal(e, r, reserved)
  local held = get('r:' .. r.name)
  if held + e.w > r.now then
    if held + e.w <= r.slots then return 'kv' end
    return 'slots'
  end
  if reserved.slots[r.name] then return 'slots' end
  if e.u == 0 then return nil end
  if reserved.prefill[r.name] then return 'prefill' end
  if e.u >= LONG_PROMPT and get('rl:' .. r.name) > 0 then return 'prefill' end
  if get('rp:' .. r.name) + prefill_cost(r, e.u) > max(1, r.budget) then return 'prefill' end
  return nil
end

-- Returns where the entry may start, or nothing and what blocks it and whether only its size does.
local function fit(e, reserved)
  local up = {}
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == e.pool and r.accepts then up[#up + 1] = r end
  end
  if #up == 0 then return nil, 'no_replica', false end
  if e.cls == 'b' then
    if get('b:' .. e.pool) + e.w > batch_limit(e.pool) then return nil, 'batch_pool', e.w > 1 end
    if reserved.batch then return nil, 'batch_pool', false end
  end
  if e.avoid ~= '' and #up > 1 then
    local others = {}
    for _, r in ipairs(up) do
      if r.name ~= e.avoid then others[#others + 1] = r end
    end
    up = others
  end
  local why, total, fitting, blockers = {}, 0, {}, {}
  for _, r in ipairs(up) do
    total = total + get('r:' .. r.name)
    local reason = refusal(e, r, reserved)
    if reason then
      why[r.name] = reason
      blockers[reason] = true
    end
  end
  for _, r in ipairs(in_order(e, up)) do
    if not why[r.name] then fitting[#fitting + 1] = r end
  end
  if #fitting == 0 then
    local reason = blockers.prefill and 'prefill' or blockers.kv and 'kv' or 'slots'
    return nil, reason, reason == 'prefill' or e.w > 1
  end
  local bound = max(4, floor((5 * (total + e.w) + 4 * #up - 1) / (4 * #up)))
  local home = home_of(e)
  for _, r in ipairs(up) do
    if r.name == home and r.affine and get('r:' .. r.name) + e.w <= bound then
      if not why[r.name] then return r.name end
      if e.home_wait > 0 and (not e.pick_since or now - e.pick_since < e.home_wait) then
        if not e.pick_since then
          e.pick_since = now
          changed(e)
        end
        return nil, 'slots', false
      end
    end
  end
  for _, r in ipairs(fitting) do
    if get('r:' .. r.name) + e.w <= bound then return r.name end
  end
  return fitting[1].name
end

local function reserve(e, reason, reserved)
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
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    local free = r.pool == e.pool and r.accepts and r.now >= e.w and not reserved.slots[name]
    if free and not reserved.prefill[name] then
      local held, key = get('r:' .. name), nil
      if reason == 'prefill' then
        key = { held + e.w <= r.now and 0 or 1, get('rp:' .. name), name }
      else
        key = { held - r.now, name }
      end
      if better(key) then best, best_key = name, key end
    end
  end
  if best then reserved[reason == 'prefill' and 'prefill' or 'slots'][best] = true end
end

------------------------------------------------------------------------------- pick and start

local function rank_of(e) return (e.since or now) + (e.cls == 'b' and HANDICAP or 0) end

local function start(e, name)
  e.rank, e.started = rank_of(e), now
  local output = min(e.o, OUTPUT_CAP)
  local average = get('avg:' .. e.flow)
  if average > 0 then output = min(output, average - 1) end -- stored plus one: 0 means none
  local p = user_policy(e.cls, e.user)
  local share = max(1, p and tonumber(p[4]) or 1)
  local cost = (e.u + 2 * output) * 1000
  if e.is_queued then unqueue(e) end
  e.is_queued = nil
  hold(e, name, floor(cost / share), true)
  if e.gateway ~= gateway then
    e.accepted = 0
    add('w:' .. e.gateway, 1)
  end
  open_window(e.flow)
  tell(e.gateway, table.concat({
    'S', e.id, name, text(e.seq), text(e.arrived), opt(e.since), text(e.rank), text(now),
    text(e.charge),
  }, '\t'))
end

local function ref_in(member) return member:sub(30) end -- rank 13, sequence 15, tab

-- Walks a sorted set of heads in order until `take` says stop; bounded.
local function walk(key, by_rank, take)
  for from = 0, MOST_SCANNED - 1, 16 do
    local page
    if by_rank then
      page = call('ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', from, 16)
    else
      page = call('ZRANGE', key, from, from + 15)
    end
    for _, member in ipairs(page) do
      local e = load_entry(ref_in(member))
      if e and take(e) then return e end
    end
    if #page < 16 then return nil end
  end
end

local function before(a, b) -- by rank, start of ageing, sequence
  local x, y = rank_of(a), rank_of(b)
  if x ~= y then return x < y end
  x, y = a.since or now, b.since or now
  if x ~= y then return x < y end
  return a.seq < b.seq
end

local function pick(pool, admissible)
  local candidate = walk(prefix .. 'ready:' .. pool, true, admissible)
    or walk(prefix .. 'fair:' .. pool .. '\tb', false, admissible)
  local chosen = walk(prefix .. 'fair:' .. pool .. '\ti', false, function(e)
    return (not candidate or before(e, candidate)) and admissible(e)
  end)
  return chosen or candidate
end

local function has_free_slot(pool)
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == pool and r.accepts and get('r:' .. name) < r.now then return true end
  end
  return false
end

local function at_bound(e)
  return (e.bypassed or 0) >= MOST_BYPASSED
    or (e.first_bypass and now - e.first_bypass >= LONGEST_BYPASS)
end

local function start_one(pool)
  if not has_free_slot(pool) or get('ready:' .. pool) == 0 then return false end
  local reserved = { slots = {}, prefill = {}, batch = false }
  local aside, is_aside = {}, {}
  for _ = 1, MOST_SET_ASIDE do
    local memo = {}
    local function admissible(e)
      if is_aside[e.ref] then return false end
      local m = memo[e.ref]
      if not m then
        local name, reason, big = fit(e, reserved)
        m = { name = name, reason = reason, big = big }
        memo[e.ref] = m
      end
      return m.name ~= nil or m.big
    end
    local e = pick(pool, admissible)
    if not e then return false end
    local m = memo[e.ref]
    if m.name then
      e.is_queued = true
      start(e, m.name)
      for _, passed in ipairs(aside) do
        passed.bypassed = (passed.bypassed or 0) + 1
        passed.first_bypass = passed.first_bypass or now
        changed(passed)
      end
      return true
    end
    aside[#aside + 1] = e
    is_aside[e.ref] = true
    if at_bound(e) then reserve(e, m.reason, reserved) end
  end
  return false
end

local starts = 0
local function dispatch()
  for _, pool in ipairs(pool_names) do
    local lent = is_lent(pool) and 1 or 0
    if get('lent:' .. pool) ~= lent then
      set('lent:' .. pool, lent)
      touch_pool(pool, 'b')
    end
  end
  settle_flows()
  if not is_open() then return end
  for _, pool in ipairs(pool_names) do
    while starts < MOST_STARTS and start_one(pool) do
      starts = starts + 1
      settle_flows()
    end
  end
end

------------------------------------------------------------------------------- places

local function drop_place(id)
  local line = call('HGET', PLACES, id)
  if not line then return end
  local f = fields(line) -- key, body, sequence, since, ends, pool, class, user
  call('HDEL', PLACES, id)
  call('ZREM', PLACE_ENDS, id)
  add('pl:' .. f[6] .. '\t' .. f[7] .. '\t' .. f[8], -1)
  local body = f[1] .. '\t' .. f[2]
  if f[2] ~= '' and call('HGET', PLACE_OF, body) == id then call('HDEL', PLACE_OF, body) end
end

local function keep_place(e, s, since, retry)
  local most = 0
  if e.cls == 'b' then
    most = window_size(e.user)
  else
    local p = user_policy(e.cls, e.user)
    most = p and tonumber(p[3]) or 0
  end
  if get('pl:' .. e.flow) >= most then return '' end
  drop_place(e.id)
  local ends = now + retry + PLACE_GRACE
  call('HSET', PLACES, e.id, table.concat({
    e.key, e.body, text(s), opt(since), text(ends), e.flow,
  }, '\t'))
  call('ZADD', PLACE_ENDS, ends, e.id)
  add('pl:' .. e.flow, 1)
  if e.body ~= '' then call('HSET', PLACE_OF, e.key .. '\t' .. e.body, e.id) end
  return e.id
end

local function take_place(e)
  local id = e.place
  if id == '' and e.body ~= '' then
    id = call('HGET', PLACE_OF, e.key .. '\t' .. e.body) or ''
  end
  local line = id ~= '' and call('HGET', PLACES, id)
  if not line then return nil end
  local f = fields(line)
  if f[1] ~= e.key or f[6] .. '\t' .. f[7] .. '\t' .. f[8] ~= e.flow then return nil end
  drop_place(id)
  if tonumber(f[5]) <= now then return nil end
  return { seq = tonumber(f[3]), since = number(f[4]) }
end

------------------------------------------------------------------------------- counted limits

-- A limit per minute is a leaky bucket, "level, at": each unit costs a minute in milliseconds and
-- `limit` of the level leaks away each millisecond. A day or month is a sum in a hash of its own.
local MINUTE, KEEP_SUMS = 60000, 172800000

local function charges_of(line)
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

local function wall() return frozen and now or clock end -- calendars follow the host's clock

local function sum_of(c)
  return max(tonumber(call('HGET', prefix .. 'sum:' .. c.window, c.counter)) or 0, c.floor)
end

local function level_of(c)
  local line = call('GET', prefix .. 'm:' .. c.counter)
  if not line then return 0 end
  local f = fields(line)
  return max(0, tonumber(f[1]) - c.limit * max(0, now - tonumber(f[2])))
end

local function has_quota(c)
  if c.window ~= '' then return sum_of(c) + c.amount <= c.limit end
  return level_of(c) + c.amount * MINUTE <= c.limit * MINUTE
end

local function quota_state(c)
  local used, wait
  if c.window ~= '' then
    used, wait = sum_of(c), max(0, c.ends - wall())
  else
    local level = level_of(c)
    used = -floor(-level / MINUTE)
    if c.amount <= c.limit then
      local missing = level + (c.amount - c.limit) * MINUTE
      wait = c.limit > 0 and max(0, -floor(-missing / c.limit)) or 0
    end
  end
  return table.concat({ c.counter, c.window, text(used), text(c.limit), opt(wait) }, '\31')
end

local function count_quota(c, amount)
  if c.window ~= '' then
    local key = prefix .. 'sum:' .. c.window
    call('HSET', key, c.counter, text(max(0, sum_of(c) + amount)))
    call('PEXPIRE', key, text(max(0, c.ends - wall()) + KEEP_SUMS))
  else
    local level = max(0, level_of(c) + amount * MINUTE)
    call('SET', prefix .. 'm:' .. c.counter, text(level) .. '\t' .. text(now), 'PX', 4 * MINUTE)
  end
end

local function reserve_quota(e, again)
  if e.charges == '' then return end
  for _, c in ipairs(charges_of(e.charges)) do
    if c.settles or not again then count_quota(c, c.amount) end
  end
end

local function settle_quota(e, tokens)
  if e.charges == '' then return end
  for _, c in ipairs(charges_of(e.charges)) do
    if c.settles then count_quota(c, tokens - c.amount) end
  end
end

------------------------------------------------------------------------------- leaving the queue

local function turn(e, code, outcome, retry, place, limit, quota)
  tell(e.gateway, table.concat({
    'T', e.id, code, outcome or '', opt(retry), place or '', opt(limit), quota or '',
  }, '\t'))
end

local function drop_queued(e)
  settle_quota(e, 0)
  unqueue(e)
  leave(e)
  open_window(e.flow)
end

local function hold_average(kind)
  local n = get('hold:' .. kind)
  if n == 0 then return DEFAULT_HOLD end
  return n - 1
end

local function evict(e)
  local slots = get('su:' .. e.pool)
  if e.cls == 'b' then slots = batch_limit(e.pool) end
  local wait = floor(hold_average(e.kind) * get('pq:' .. e.kind) / max(1, slots))
  local retry = max(SHORTEST_RETRY, wait)
  local place = keep_place(e, e.seq, e.since, retry)
  drop_queued(e)
  if get('down:' .. e.pool) > 0 then
    turn(e, 'no_replica', 'evicted_no_replica', retry, place)
  else
    turn(e, 'queue_timeout', 'evicted_timed_out', retry, place)
  end
end

local function revoke(e)
  drop_queued(e)
  turn(e, 'revoked', 'evicted_revoked')
end

------------------------------------------------------------------------------- entering

local function largest_weight(e)
  local total, largest = 0, 0
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.registered and r.pool == e.pool then
      total, largest = total + r.slots, max(largest, r.slots)
    end
  end
  if largest == 0 then return nil end
  local key, user = key_policy(e.cls, e.key), user_policy(e.cls, e.user)
  local most = min(largest, tonumber(key[3]), user_cap(number(user[2]), e.cls, total))
  if e.cls == 'b' then most = min(most, batch_slots(pools[e.pool].busy, nil, total, false)) end
  return most
end

local function is_full(e)
  local key, user, pool = key_policy(e.cls, e.key), user_policy(e.cls, e.user), pools[e.pool]
  local bound = e.cls == 'b' and pool.bound_b or pool.bound_i
  local code, limit, busy
  if get('kq:' .. e.owner_key) >= tonumber(key[4]) then
    code, limit, busy = 'queue_full_key', tonumber(key[4]), get('k:' .. e.owner_key)
  elseif get('uq:' .. e.owner_user) >= tonumber(user[3]) then
    code, limit, busy = 'queue_full_key', tonumber(user[3]), get('u:' .. e.owner_user)
  elseif get('pq:' .. e.kind) >= bound then
    code, limit, busy = 'queue_full', bound, get('pt:' .. e.kind) - get('pq:' .. e.kind)
  else
    return false
  end
  local retry, place = max(SHORTEST_RETRY, floor(hold_average(e.kind) / max(1, busy))), ''
  if e.cls == 'i' then
    seq = seq + 1
    place = keep_place(e, seq, now, retry)
  end
  turn(e, code, nil, retry, place, limit)
  return true
end

-- A ticket that nobody stands before and that fits now needs no queue.
local function start_at_once(e)
  settle_flows()
  if not is_open() or get('ready:' .. e.pool) > 0 or get('n:' .. e.flow) > 0 then return false end
  if not has_own_room(e) then return false end
  local name = fit(e, { slots = {}, prefill = {}, batch = false })
  if not name then return false end
  if e.cls == 'b' and window_size(e.user) > 0 then e.since = e.since or now end
  start(e, name)
  return true
end

local function take_in(e)
  if not e.since and e.cls == 'i' then e.since = now end
  enter(e)
  -- Entering ends the loan to batch, or lifts V: both are settled by the dispatch that follows.
  if start_at_once(e) then return end
  queue(e)
  open_window(e.flow, e)
  tell(e.gateway, table.concat({ 'Q', e.id, text(e.seq), text(e.arrived), opt(e.since) }, '\t'))
end

local function new_entry(id, ticket)
  local e = {
    gateway = gateway, id = id, ref = gateway .. '\t' .. id, replica = '', avoid = '',
    accepted = 1, charge = 0, reading = 0, bypassed = 0,
  }
  read_ticket(e, ticket)
  return e
end

------------------------------------------------------------------------------- what time brings

local function decay()
  local minute = floor(now / DECAY_STEP)
  local steps = min(minute - tonumber(meta[6]), MOST_DECAYS)
  meta[6] = text(minute)
  if steps <= 0 then return end
  local function shrunk(n)
    for _ = 1, steps do
      n = n * 933
      n = (n - n % 1000) / 1000
    end
    return n
  end
  local raw = call('HGETALL', SERVICE)
  for i = 1, #raw, 2 do service_of(raw[i]) end
  for owner, n in pairs(service) do
    service[owner] = shrunk(n)
    service_dirty[owner] = true
    if get('ut:' .. owner) > 0 then
      call('ZADD', prefix .. 'act:' .. owner:sub(1, 1), service[owner], owner)
    end
    if get('uq:' .. owner) > 0 then touch(owner) end
  end
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do
    for _, e in ipairs(load_all(name)) do
      if e.charge > 0 then
        e.charge = shrunk(e.charge)
        changed(e)
      end
    end
  end
end

local function drop(e, keeps_charge)
  if e.replica == '' then return drop_queued(e) end
  -- What a dead process's ticket really used died with it: the estimate is kept.
  if not keeps_charge then serve(e.owner_user, -e.charge) end
  settle_quota(e, keeps_charge and e.u + min(e.o, OUTPUT_CAP) or 0)
  unhold(e)
  leave(e)
end

local function silence(name)
  if get('w:' .. name) == 0 then return end
  for _, e in ipairs(load_all(name)) do
    if e.replica == '' or e.accepted == 0 then
      if e.interrupted ~= '' then call('RPUSH', prefix .. 'x:' .. name, e.interrupted) end
      drop(e, false)
    end
  end
  set('a:' .. name, 1)
  call('DEL', prefix .. 'in:' .. name)
end

local function append_usage(record) return call('XADD', USAGE, '*', 'r', record) end

local function on_replica(record, name)
  local from, to = record:find('"replica_id":""', 1, true)
  if not from then return record end
  return record:sub(1, to - 1) .. name .. record:sub(to)
end

local function reap(name)
  for _, e in ipairs(load_all(name)) do
    if e.interrupted ~= '' then append_usage(on_replica(e.interrupted, e.replica)) end
    drop(e, e.accepted == 1)
  end
  for _, record in ipairs(call('LRANGE', prefix .. 'x:' .. name, 0, -1)) do append_usage(record) end
  call('DEL', prefix .. 'x:' .. name, prefix .. 'in:' .. name)
  call('ZREM', HEARD, name)
  set('s:' .. name, 0)
  set('a:' .. name, 0)
  set('w:' .. name, 0)
  for _, field in ipairs(call('HKEYS', FLEET)) do
    if field:sub(1, 1) == 'o' and field:sub(-#name - 1) == '\t' .. name then
      call('HDEL', FLEET, field)
    end
  end
  refresh_fleet()
end

local function late_in(key, until_ms)
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', text(until_ms), 'LIMIT', 0,
    MOST_EVICTIONS)) do
    local e = load_entry(member:sub(17)) -- sequence 15, tab
    if e then found[#found + 1] = e end
  end
  return found
end

local function sweep()
  decay()
  local late = call('ZRANGEBYSCORE', HEARD, '-inf', text(now - SILENCE), 'WITHSCORES')
  local names, heard = {}, {}
  for i = 1, #late, 2 do
    names[#names + 1] = late[i]
    heard[late[i]] = tonumber(late[i + 1])
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if name ~= gateway then
      if now - heard[name] >= LIMIT then reap(name) else silence(name) end
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', PLACE_ENDS, '-inf', text(now), 'LIMIT', 0, 64)) do
    drop_place(id)
  end
  for _, e in ipairs(late_in(DEADLINES, now)) do evict(e) end
  for _, pool in ipairs(pool_names) do
    local down = get('down:' .. pool)
    if down > 0 and now - down >= NO_REPLICA then
      for _, e in ipairs(late_in(prefix .. 'a:' .. pool, now - NO_REPLICA)) do evict(e) end
    end
  end
end

------------------------------------------------------------------------------- operations

local operations = {}

function operations.E(id, ticket) -- enqueue
  local e = new_entry(id, ticket)
  if load_entry(e.ref) then return turn(e, 'duplicate_ticket') end
  local key = key_policy(e.cls, e.key)
  if key and key[2] ~= '1' then return turn(e, 'revoked') end
  if not key or not user_policy(e.cls, e.user) or not pools[e.pool] then
    return turn(e, 'directory_unavailable', nil, 5000)
  end
  local largest = largest_weight(e)
  if largest and e.w > largest then return turn(e, 'weight_too_large', nil, nil, '', largest) end
  for _, c in ipairs(charges_of(e.charges)) do
    if not has_quota(c) then
      local state = quota_state(c)
      local wait = number(state:match('[^\31]*$'))
      return turn(e, 'over_quota', nil, wait, '', c.limit, state)
    end
  end
  local place = take_place(e)
  if not place and is_full(e) then return end
  reserve_quota(e)
  seq = seq + 1
  e.seq, e.since = seq, nil
  if place then e.seq, e.since = place.seq, place.since end
  e.arrived, e.deadline = now, now + e.ttl
  take_in(e)
end

function operations.C(id) -- cancel
  local e = own(id, true)
  if e then drop_queued(e) end
end

function operations.R(id, line) -- release: outcome, prompt, completion, all tokens, record
  local e = own(id, false)
  if not e then return end
  local f = fields(line)
  local p = user_policy(e.cls, e.user)
  local cost = (tonumber(f[2]) + 2 * tonumber(f[3])) * 1000
  serve(e.owner_user, floor(cost / max(1, p and tonumber(p[4]) or 1)) - e.charge)
  if f[1] == 'served' then
    local function average(name, sample) -- stored plus one, so that 0 means none
      local old = get(name)
      if old == 0 then set(name, sample + 1) else
        set(name, floor(((old - 1) * 7 + sample) / 8) + 1)
      end
    end
    average('avg:' .. e.flow, tonumber(f[3]))
    average('hold:' .. e.kind, now - e.started)
    bind(e)
  end
  settle_quota(e, tonumber(f[4]))
  unhold(e)
  leave(e)
  if f[5] ~= '' then tell(gateway, 'R\t' .. id .. '\t' .. append_usage(f[5])) end
end

function operations.B(id, avoid) -- put back
  local e = own(id, false)
  if not e then return end
  give_back(e)
  e.avoid = avoid
  queue(e)
  open_window(e.flow)
  local key = key_policy(e.cls, e.key)
  if now >= e.deadline then evict(e) elseif key and key[2] ~= '1' then revoke(e) end
end

function operations.P(id) -- the prompt has been read
  local e = own(id, false)
  if e then stop_reading(e) end
end

local function is_older(name, version)
  local known = policy(name)
  return known and tonumber(known[1]) > version
end

local function write_policy(name, line)
  call('HSET', CONFIG, name, line)
  policies[name] = fields(line)
end

function operations.K(owner_key, line) -- caps of a key in a class
  local f, name = fields(line), 'k\t' .. owner_key
  if is_older(name, tonumber(f[1])) or call('HGET', CONFIG, name) == line then return end
  write_policy(name, line)
  local cls, key = owner_key:sub(1, 1), owner_key:sub(3)
  for _, pool in ipairs(pool_names) do
    local waiting = call('ZRANGE', prefix .. 'q:' .. pool .. '\t' .. owner_key, 0, -1)
    for _, ref in ipairs(waiting) do
      local e = load_entry(ref)
      if e then
        touch(e.owner_user)
        if f[2] ~= '1' then revoke(e) end
      end
    end
  end
end

function operations.U(owner_user, line) -- caps and share of a user in a class
  local f, name = fields(line), 'u\t' .. owner_user
  if is_older(name, tonumber(f[1])) or call('HGET', CONFIG, name) == line then return end
  write_policy(name, line)
  touch(owner_user)
  if owner_user:sub(1, 1) == 'b' then
    for _, pool in ipairs(pool_names) do open_window(pool .. '\t' .. owner_user) end
  end
end

function operations.L(pool, line) -- how a pool is shared
  local known = pools[pool]
  if known and known.version > tonumber(fields(line)[1]) then return end
  call('HSET', FLEET, 'p\t' .. pool, line)
  refresh_fleet()
end

function operations.V(name, line) -- a replica of the books
  local known = replicas[name]
  if known and known.registered and known.version > tonumber(fields(line)[1]) then return end
  call('HSET', FLEET, 'r\t' .. name, line)
  call('HDEL', FLEET, 'x\t' .. name)
  refresh_fleet()
end

function operations.X(name) -- a replica is forgotten
  local known = replicas[name]
  if not known then return end
  for _, field in ipairs(call('HKEYS', FLEET)) do
    if field == 'r\t' .. name or field == 'i\t' .. name or field:sub(1, #name + 3) == 'o\t' .. name .. '\t' then
      call('HDEL', FLEET, field)
    end
  end
  if get('r:' .. name) > 0 then call('HSET', FLEET, 'x\t' .. name, known.pool) end
  refresh_fleet()
end

function operations.O(name, line) -- a replica as this process sees it
  local known = replicas[name]
  if not known or not known.registered then return end
  local f = fields(line) -- accepts, slots, affine, incarnation
  call('HSET', FLEET, 'o\t' .. name .. '\t' .. gateway, f[1] .. '\t' .. f[2] .. '\t' .. f[3])
  if f[4] ~= '' then call('HSET', FLEET, 'i\t' .. name, f[4]) end
  refresh_fleet()
end

function operations.A(ms) -- advance ledger time
  ms = tonumber(ms)
  if not testing or ms <= 0 then return end
  now = now + ms
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do call('ZINCRBY', HEARD, ms, name) end
  sweep()
end

function operations.H(id, line) -- adopt a lease: its header, a carriage return, the ticket
  local ref = gateway .. '\t' .. id
  if load_entry(ref) then return end
  local e = read_entry(gateway, id, line)
  local charge, reads = e.charge, e.reading
  e.charge, e.reading = 0, 0
  if not replicas[e.replica] then
    call('HSET', FLEET, 'x\t' .. e.replica, e.pool)
    refresh_fleet()
  end
  e.deadline, e.rank = e.arrived + e.ttl, rank_of(e)
  seq = max(seq, e.seq)
  enter(e)
  hold(e, e.replica, charge, reads > 0)
  reserve_quota(e, true)
end

function operations.W(id, line) -- adopt a waiting ticket
  if load_entry(gateway .. '\t' .. id) then return end
  local e = read_entry(gateway, id, line)
  e.deadline = e.arrived + e.ttl
  seq = max(seq, e.seq)
  reserve_quota(e, true)
  take_in(e)
end

function operations.Q(_, line) -- where counted limits stand
  local states = {}
  for _, c in ipairs(charges_of(line)) do states[#states + 1] = quota_state(c) end
  answers[#answers + 1] = 'U\t' .. table.concat(states, '\30')
end

function operations.D() -- everything, for a view or a recount
  for _, key in ipairs({ COUNTS, SERVICE, CONFIG, FLEET, HEADS, META }) do
    local raw = call('HGETALL', key)
    for i = 1, #raw, 2 do
      answers[#answers + 1] = 'D\t' .. key:sub(#prefix + 1) .. '\r' .. raw[i] .. '\r' .. raw[i + 1]
    end
  end
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do
    local raw = call('HGETALL', prefix .. 'g:' .. name)
    for i = 1, #raw, 2 do
      answers[#answers + 1] = 'D\tg:' .. name .. '\r' .. raw[i] .. '\r' .. raw[i + 1]
    end
  end
end

------------------------------------------------------------------------------- the step

local function save()
  settle_flows()
  flush_entries()
  flush(COUNTS, counts, counts_dirty)
  flush(SERVICE, service, service_dirty)
  write_meta()
  entries_dirty, counts_dirty, service_dirty = {}, {}, {}
end

refresh_fleet()
if adopts then
  for _, e in ipairs(load_all(gateway)) do drop(e, false) end
  answers = {} -- what the dropping said of entries dropped a moment later
  call('DEL', prefix .. 'in:' .. gateway, prefix .. 'x:' .. gateway)
else
  local inbox = prefix .. 'in:' .. gateway
  local waiting = get('w:' .. gateway) > 0 or call('EXISTS', inbox) == 1
  if waiting then
    for _, line in ipairs(call('LRANGE', inbox, 0, -1)) do
      answers[#answers + 1] = line
      if line:sub(1, 1) == 'S' then
        local e = load_entry(gateway .. '\t' .. line:match('^S\t([^\t]*)'))
        if e then accept(e) end
      end
    end
    call('DEL', inbox)
  end
end
sweep()
-- Of an adoption nothing may start before all its leases are told: they are in use at the engines.
if not adopts then dispatch() end
for i = 7, #ARGV, 3 do
  if ARGV[i] == 'D' then save() end
  operations[ARGV[i]](ARGV[i + 1], ARGV[i + 2])
  if ARGV[i] ~= 'H' then dispatch() end
end
dispatch()
save()
for name in pairs(poked) do call('PUBLISH', prefix .. 'poke:' .. name, '') end
return table.concat({ sequence, text(now), is_open() and '1' or '0' }, '\t')
  .. '\n' .. table.concat(answers, '\n')
