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

-- Every function of this script is a field of L: each local a function refers to is looked for in a
-- list, and with a hundred of them that alone would cost a tenth of a millisecond in each step.
local L = {}
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

function L.text(n) return string.format('%.0f', n) end
function L.padded(n) return string.format('%015.0f', n) end
function L.number(s) if s and s ~= '' then return tonumber(s) end end
function L.opt(n) if n then return L.text(n) end return '' end
function L.fields(line)
  local out, n = {}, 0
  for value in (line .. '\t'):gmatch('([^\t]*)\t') do
    n = n + 1
    out[n] = value
  end
  return out
end

------------------------------------------------------------------------------- counters

local counts, counts_dirty = {}, {}
function L.get(name)
  local n = counts[name]
  if n == nil then
    n = tonumber(call('HGET', COUNTS, name)) or 0
    counts[name] = n
  end
  return n
end
function L.set(name, n)
  if L.get(name) ~= n then
    counts[name] = n
    counts_dirty[name] = true
  end
end
function L.add(name, n) L.set(name, L.get(name) + n) end

local service, service_dirty = {}, {} -- V of class and user
function L.service_of(owner)
  local n = service[owner]
  if n == nil then
    n = tonumber(call('HGET', SERVICE, owner)) or 0
    service[owner] = n
  end
  return n
end

function L.flush(key, cache, dirty)
  local sets, drops = {}, {}
  for name in pairs(dirty) do
    if cache[name] == 0 then
      drops[#drops + 1] = name
    else
      sets[#sets + 1] = name
      sets[#sets + 1] = L.text(cache[name])
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
  meta[6] = L.text(floor(now / DECAY_STEP))
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
function L.is_open() return now >= opens end
function L.write_meta()
  call('HSET', META, 'now', L.text(now), 'clock', L.text(clock), 'run', run, 'opens', L.text(opens),
    'seq', L.text(seq), 'minute', meta[6])
end

local stored = tonumber(call('HGET', COUNTS, 's:' .. gateway)) or 0
local expected
if adopts then
  expected = stored ~= tonumber(sequence)
else
  expected = stored == previous and not call('HGET', COUNTS, 'a:' .. gateway)
end
if not expected then
  L.write_meta()
  return table.concat({ 'ADOPT', sequence, L.text(now), L.is_open() and '1' or '0', L.text(stored) }, '\t')
end
call('ZADD', HEARD, now, gateway)
L.set('s:' .. gateway, tonumber(sequence))
L.set('a:' .. gateway, 0)

------------------------------------------------------------------------------- answers

local answers, poked = {}, {}
function L.tell(owner, line)
  if owner == gateway then
    answers[#answers + 1] = line
  else
    call('RPUSH', prefix .. 'in:' .. owner, line)
    poked[owner] = true
  end
end

------------------------------------------------------------------------------- policies

local policies = {}
function L.policy(name)
  local p = policies[name]
  if p == nil then
    local line = call('HGET', CONFIG, name)
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

-- Pools: version, batch slots, idle ones, idle after, queue bounds. Replicas: as placing.py.
local pools, pool_names, replicas, replica_names = {}, {}, {}, {}

function L.slots_up(pool)
  local total = 0
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == pool and r.accepts then total = total + r.now end
  end
  return total
end

function L.reserved_of(line) -- "group:slots,group:slots"
  local out = {}
  for group, slots in line:gmatch('([^,]*):(%d+)') do
    out[#out + 1] = { group = group, slots = tonumber(slots) }
  end
  return out
end

function L.refresh_fleet()
  local raw, seen, gone_into = call('HGETALL', FLEET), {}, {}
  pools, pool_names, replicas, replica_names = {}, {}, {}, {}
  for i = 1, #raw, 2 do
    local kind, f = raw[i]:sub(1, 1), L.fields(raw[i + 1])
    local name = raw[i]:sub(3)
    if kind == 'p' then
      pools[name] = {
        version = tonumber(f[1]), busy = L.number(f[2]), idle = L.number(f[3]),
        idle_after = tonumber(f[4]), bound_i = tonumber(f[5]), bound_b = tonumber(f[6]),
        reserved = f[7] and f[7] ~= '' and L.reserved_of(f[7]) or nil,
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
        replica = name:sub(1, at - 1), accepts = f[1] == '1', slots = L.number(f[2]),
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
      L.set('down:' .. pool, 0)
    elseif L.get('down:' .. pool) == 0 then
      L.set('down:' .. pool, now)
    end
    if L.get('su:' .. pool) ~= total then
      L.set('su:' .. pool, total)
      L.touch_pool(pool, 'i')
      L.touch_pool(pool, 'b')
    end
  end
end

------------------------------------------------------------------------------- shares of a pool

function L.is_lent(pool)
  if L.get('pt:' .. pool .. '\ti') > 0 then return false end
  local ended = L.get('ce:' .. pool)
  return ended == 0 or now - ended >= pools[pool].idle_after
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
  return L.batch_slots(p.busy, p.idle, L.get('su:' .. pool), L.is_lent(pool))
end

function L.user_cap(cap, cls, total)
  if cap then return cap end
  if cls == 'b' then return BATCH_USER_CAP end
  return max(1, min(4, floor((total + 1) / 2)))
end

function L.window_size(user)
  local p = L.user_policy('b', user)
  return L.user_cap(p and L.number(p[2]) or nil, 'b', 0)
end

------------------------------------------------------------------------------- entries

-- An entry is one line in the hash of its gateway: what changes, a carriage return, the ticket.
local entries, entries_dirty = {}, {}
local HEADER = {
  'replica', 'seq', 'arrived', 'deadline', 'since', 'started', 'rank', 'charge', 'reading',
  'accepted', 'pick_since', 'first_bypass', 'bypassed', 'avoid',
}
local IS_TEXT = { replica = true, avoid = true }

function L.read_ticket(e, line)
  local f = L.fields(line)
  e.ticket = line
  e.key, e.user, e.cls, e.pool = f[1], f[2], f[3], f[4]
  e.w, e.u, e.o = tonumber(f[5]), tonumber(f[6]), tonumber(f[7])
  e.ttl, e.home_wait = tonumber(f[8]), tonumber(f[9])
  e.session, e.order, e.place, e.body = f[10], f[11], f[12], f[13]
  e.charges, e.interrupted, e.group = f[14], f[15], f[16]
  e.owner_key, e.owner_user = e.cls .. '\t' .. e.key, e.cls .. '\t' .. e.user
  e.flow = e.pool .. '\t' .. e.owner_user
  e.queue = prefix .. 'q:' .. e.flow .. '\t' .. e.key
  e.kind = e.pool .. '\t' .. e.cls
end

function L.read_entry(owner, id, line)
  local e = { gateway = owner, id = id, ref = owner .. '\t' .. id }
  local cut = line:find('\r', 1, true)
  local f = L.fields(line:sub(1, cut - 1))
  for i, name in ipairs(HEADER) do
    if IS_TEXT[name] then e[name] = f[i] else e[name] = L.number(f[i]) end
  end
  L.read_ticket(e, line:sub(cut + 1))
  entries[e.ref] = e
  return e
end

function L.load_entry(ref)
  local e = entries[ref]
  if e == nil then
    local at = ref:find('\t', 1, true)
    local owner, id = ref:sub(1, at - 1), ref:sub(at + 1)
    local line = call('HGET', prefix .. 'g:' .. owner, id)
    if not line then
      entries[ref] = false
      return false
    end
    e = L.read_entry(owner, id, line)
  end
  return e
end

function L.changed(e) entries_dirty[e.ref] = e end

function L.load_all(owner, only_held)
  local raw, found = call('HGETALL', prefix .. 'g:' .. owner), {}
  for i = 1, #raw, 2 do
    -- A queued entry's line begins with the tab behind its empty replica.
    local wanted = not only_held or raw[i + 1]:sub(1, 1) ~= '\t'
    if wanted and entries[owner .. '\t' .. raw[i]] == nil then
      L.read_entry(owner, raw[i], raw[i + 1])
    end
  end
  for _, e in pairs(entries) do -- those made in this step as well
    if e and e.gateway == owner then found[#found + 1] = e end
  end
  table.sort(found, function(a, b) return a.seq < b.seq end)
  return found
end

function L.flush_entries()
  for _, e in pairs(entries_dirty) do
    local hash = prefix .. 'g:' .. e.gateway
    if e.gone then
      -- Always: an entry made in this step may stand for one of the same name stored before.
      call('HDEL', hash, e.id)
    else
      local head = {}
      for i, name in ipairs(HEADER) do
        local v = e[name]
        if v == nil then head[i] = '' elseif IS_TEXT[name] then head[i] = v else head[i] = L.text(v) end
      end
      call('HSET', hash, e.id, table.concat(head, '\t') .. '\r' .. e.ticket)
    end
  end
end

function L.own(id, queued)
  local e = L.load_entry(gateway .. '\t' .. id)
  if e and (e.replica == '') == queued then return e end
end

------------------------------------------------------------------------------- flows

-- HEADS: flow -> "reference, member in fair, member in ready" of the head that represents it, or
-- empty when the flow is parked. Every flow with something queued has a field.
local touched = {}
function L.touch(owner_user) touched[owner_user] = true end

function L.touch_pool(pool, cls)
  local start = pool .. '\t' .. cls .. '\t'
  for _, flow in ipairs(call('HKEYS', HEADS)) do
    if flow:sub(1, #start) == start then L.touch(flow:sub(#pool + 2)) end
  end
end

function L.has_own_room(e)
  local key, user = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user)
  if not key or not user or key[2] ~= '1' then return false end
  local lent = e.cls == 'b' and pools[e.pool] and L.is_lent(e.pool)
  if not (lent and key[5] == '1') then
    if L.get('k:' .. e.owner_key) + e.w > tonumber(key[3]) then return false end
  end
  local cap = L.number(user[2])
  if lent and not cap then return true end
  return L.get('u:' .. e.owner_user) + e.w <= L.user_cap(cap, e.cls, L.get('su:' .. e.pool))
end

function L.head_of(flow)
  local start = prefix .. 'q:' .. flow .. '\t'
  for _, key in ipairs(call('ZRANGE', prefix .. 'f:' .. flow, 0, -1)) do
    local first = call('ZRANGE', start .. key, 0, 0)[1]
    local e = first and L.load_entry(first)
    if e and L.has_own_room(e) then return e end
  end
end

function L.evaluate(flow, owner_user)
  local pool, cls, user = flow:match('^([^\t]*)\t([^\t]*)\t(.*)$')
  local fair, ready = prefix .. 'fair:' .. pool .. '\t' .. cls, prefix .. 'ready:' .. pool
  local old = call('HGET', HEADS, flow)
  local old_fair = old and old ~= '' and old
  local e = L.get('n:' .. flow) > 0 and L.head_of(flow)
  local new_fair
  if e then
    local rank = NEVER
    if e.since then rank = string.format('%013.0f', e.since + (cls == 'b' and HANDICAP or 0)) end
    new_fair = rank .. L.padded(e.seq) .. '\t' .. e.ref
  end
  if old_fair and old_fair ~= new_fair then
    call('ZREM', fair, old_fair)
    if cls == 'b' then call('ZREM', ready, old_fair) end
  end
  if new_fair then
    call('ZADD', fair, L.service_of(owner_user), new_fair)
    if cls == 'b' and e.since and old_fair ~= new_fair then
      call('ZADD', ready, e.since + HANDICAP, new_fair)
    end
  end
  if (old_fair and 1 or 0) ~= (new_fair and 1 or 0) then
    L.add('ready:' .. pool, new_fair and 1 or -1)
  end
  if L.get('n:' .. flow) == 0 then
    if old then call('HDEL', HEADS, flow) end
  elseif (new_fair or '') ~= old then
    call('HSET', HEADS, flow, new_fair or '')
  end
end

function L.settle_flows()
  for owner_user in pairs(touched) do
    for _, pool in ipairs(pool_names) do
      local flow = pool .. '\t' .. owner_user
      if L.get('n:' .. flow) > 0 or call('HEXISTS', HEADS, flow) == 1 then
        L.evaluate(flow, owner_user)
      end
    end
  end
  touched = {}
end

-- V without the charges of what is in flight: what is known to have been used. It stands in act:,
-- of all and only the active.
function L.settled(owner_user) return L.service_of(owner_user) - L.get('uc:' .. owner_user) end

function L.stand(owner_user)
  if L.get('ut:' .. owner_user) > 0 then
    call('ZADD', prefix .. 'act:' .. owner_user:sub(1, 1), L.settled(owner_user), owner_user)
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

function L.open_window(flow, but)
  local pool, cls, user = flow:match('^([^\t]*)\t([^\t]*)\t(.*)$')
  if cls ~= 'b' then return end
  local size = L.window_size(user)
  if size <= 0 then return end
  for _, ref in ipairs(call('ZRANGE', prefix .. 'w:' .. flow, 0, size - 1)) do
    local e = L.load_entry(ref)
    if e and not e.since then
      e.since = now
      L.changed(e)
      L.touch(e.owner_user)
      if e ~= but then
        L.tell(e.gateway, table.concat({ 'Q', e.id, L.text(e.seq), L.text(e.arrived), L.text(now) }, '\t'))
      end
    end
  end
end

------------------------------------------------------------------------------- elementary moves

function L.enter(e)
  local active = prefix .. 'act:' .. e.cls
  if L.get('ut:' .. e.owner_user) == 0 then
    local least = call('ZRANGE', active, 0, 0, 'WITHSCORES')[2]
    if least and tonumber(least) > L.service_of(e.owner_user) then
      service[e.owner_user] = tonumber(least)
      service_dirty[e.owner_user] = true
    end
    call('ZADD', active, L.settled(e.owner_user), e.owner_user)
  end
  L.add('ut:' .. e.owner_user, 1)
  L.add('pt:' .. e.kind, 1)
  entries[e.ref] = e
  L.changed(e)
end

function L.leave(e)
  L.add('ut:' .. e.owner_user, -1)
  if L.get('ut:' .. e.owner_user) == 0 then
    call('ZREM', prefix .. 'act:' .. e.cls, e.owner_user)
  end
  L.add('pt:' .. e.kind, -1)
  if e.cls == 'i' then L.set('ce:' .. e.pool, now) end
  e.gone = true
  L.changed(e)
  entries[e.ref] = false
end

function L.set_key_head(e) -- the key's place in its flow is that of its oldest ticket
  local first = call('ZRANGE', e.queue, 0, 0, 'WITHSCORES')
  local flow = prefix .. 'f:' .. e.flow
  if first[2] then
    call('ZADD', flow, first[2], e.key)
  else
    call('ZREM', flow, e.key)
    call('SREM', prefix .. 'uk:' .. e.owner_key, e.flow)
  end
end

function L.count_queued(e, n)
  L.add('kq:' .. e.owner_key, n)
  L.add('uq:' .. e.owner_user, n)
  L.add('pq:' .. e.kind, n)
  L.add('n:' .. e.flow, n)
  L.add('w:' .. e.gateway, n)
  if e.group then L.add('gq:' .. e.pool .. '\t' .. e.group, n) end
  L.touch(e.owner_user)
end

function L.queue(e)
  call('ZADD', e.queue, e.seq, e.ref)
  if L.get('kq:' .. e.owner_key) == 0 then
    call('ZADD', prefix .. 'f:' .. e.flow, e.seq, e.key)
  else
    L.set_key_head(e)
  end
  call('SADD', prefix .. 'uk:' .. e.owner_key, e.flow)
  if e.cls == 'b' then call('ZADD', prefix .. 'w:' .. e.flow, e.seq, e.ref) end
  call('ZADD', DEADLINES, e.deadline, L.padded(e.seq) .. '\t' .. e.ref)
  call('ZADD', prefix .. 'a:' .. e.pool, e.arrived, L.padded(e.seq) .. '\t' .. e.ref)
  L.count_queued(e, 1)
end

function L.unqueue(e)
  call('ZREM', e.queue, e.ref)
  if e.cls == 'b' then call('ZREM', prefix .. 'w:' .. e.flow, e.ref) end
  call('ZREM', DEADLINES, L.padded(e.seq) .. '\t' .. e.ref)
  call('ZREM', prefix .. 'a:' .. e.pool, L.padded(e.seq) .. '\t' .. e.ref)
  L.set_key_head(e)
  L.count_queued(e, -1)
end

function L.flows_of_key(owner_key) -- those with something queued under it
  local flows = call('SMEMBERS', prefix .. 'uk:' .. owner_key)
  table.sort(flows)
  return flows
end

function L.count_held(e, n)
  L.add('r:' .. e.replica, n)
  L.add('k:' .. e.owner_key, n)
  L.add('u:' .. e.owner_user, n)
  if e.cls == 'b' then L.add('b:' .. e.pool, n) end
  if e.group then L.add('gh:' .. e.replica .. '\t' .. e.group, n) end
  L.touch(e.owner_user)
  -- Behind an application key the room that comes free is that of other people as well.
  if L.get('kq:' .. e.owner_key) > 0 then
    for _, flow in ipairs(L.flows_of_key(e.owner_key)) do L.touch(flow:match('\t(.*)$')) end
  end
end

function L.prefill_cost(r, tokens) return min(tokens, max(1, r.budget)) end

function L.hold(e, name, charge, reads)
  e.replica, e.charge = name, charge
  L.serve(e.owner_user, charge, charge)
  L.count_held(e, e.w)
  if reads and e.u > 0 then
    e.reading = L.prefill_cost(replicas[name], e.u)
    L.add('rp:' .. name, e.reading)
    if e.u >= LONG_PROMPT then L.add('rl:' .. name, 1) end
  end
  L.changed(e)
end

function L.stop_reading(e)
  if e.reading and e.reading > 0 then
    L.add('rp:' .. e.replica, -e.reading)
    if e.u >= LONG_PROMPT then L.add('rl:' .. e.replica, -1) end
    e.reading = 0
    L.changed(e)
  end
end

function L.accept(e)
  if e.accepted == 0 then
    e.accepted = 1
    L.add('w:' .. e.gateway, -1)
    L.changed(e)
  end
end

function L.unhold(e)
  L.stop_reading(e)
  L.count_held(e, -e.w)
  L.accept(e)
  local r = replicas[e.replica]
  if r and not r.registered and L.get('r:' .. e.replica) == 0 then
    call('HDEL', FLEET, 'x\t' .. e.replica)
    L.refresh_fleet()
  end
  e.replica = ''
  L.changed(e)
end

function L.give_back(e)
  L.serve(e.owner_user, -e.charge, -e.charge)
  e.charge = 0
  L.unhold(e)
end

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
  local line = table.concat({ e.replica, r and r.incarnation or '', L.text(now + BINDING) }, '\t')
  -- The key's own expiry only clears away what ledger time has ended long before.
  call('SET', prefix .. 's:' .. e.session, line, 'PX', BINDING * 2)
end

------------------------------------------------------------------------------- placing

function L.in_order(e, up)
  if e.order == '' or e.session == '' then
    table.sort(up, function(a, b)
      local x, y = L.get('r:' .. a.name), L.get('r:' .. b.name)
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
  local held = L.get('r:' .. r.name)
  if held + e.w > r.now then
    if held + e.w <= r.slots then return 'kv' end
    return 'slots'
  end
  if reserved.slots[r.name] then return 'slots' end
  if e.u == 0 then return nil end
  if reserved.prefill[r.name] then return 'prefill' end
  if e.u >= LONG_PROMPT and L.get('rl:' .. r.name) > 0 then return 'prefill' end
  if L.get('rp:' .. r.name) + L.prefill_cost(r, e.u) > max(1, r.budget) then return 'prefill' end
  return nil
end

-- Rule 7: is what is free kept for other groups than this one? As is_kept of state.py.
function L.is_kept(pool, weight, group)
  local free, held = 0, {}
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == pool and r.accepts then
      free = free + max(0, r.now - L.get('r:' .. name))
      for i, one in ipairs(pools[pool].reserved) do
        held[i] = (held[i] or 0) + L.get('gh:' .. name .. '\t' .. one.group)
      end
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
  local up = {}
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == e.pool and r.accepts then up[#up + 1] = r end
  end
  if #up == 0 then return nil, 'no_replica', false end
  if e.cls == 'b' then
    if L.get('b:' .. e.pool) + e.w > L.batch_limit(e.pool) then return nil, 'batch_pool', e.w > 1 end
    if reserved.batch then return nil, 'batch_pool', false end
  end
  if pools[e.pool].reserved and L.is_kept(e.pool, e.w, e.group) then return nil, 'reserved', false end
  if e.avoid ~= '' and #up > 1 then
    local others = {}
    for _, r in ipairs(up) do
      if r.name ~= e.avoid then others[#others + 1] = r end
    end
    up = others
  end
  local why, total, fitting, blockers = {}, 0, {}, {}
  for _, r in ipairs(up) do
    total = total + L.get('r:' .. r.name)
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
    if r.name == home and r.affine and L.get('r:' .. r.name) + e.w <= bound then
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
    if L.get('r:' .. r.name) + e.w <= bound then return r.name end
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
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    local free = r.pool == e.pool and r.accepts and r.now >= e.w and not reserved.slots[name]
    if free and not reserved.prefill[name] then
      local held, key = L.get('r:' .. name), nil
      if reason == 'prefill' then
        key = { held + e.w <= r.now and 0 or 1, L.get('rp:' .. name), name }
      else
        key = { held - r.now, name }
      end
      if better(key) then best, best_key = name, key end
    end
  end
  if best then reserved[reason == 'prefill' and 'prefill' or 'slots'][best] = true end
end

------------------------------------------------------------------------------- pick and start

function L.rank_of(e) return (e.since or now) + (e.cls == 'b' and HANDICAP or 0) end

function L.start(e, name)
  e.rank, e.started = L.rank_of(e), now
  local output = min(e.o, OUTPUT_CAP)
  local average = L.get('avg:' .. e.flow)
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
  L.open_window(e.flow)
  L.tell(e.gateway, table.concat({
    'S', e.id, name, L.text(e.seq), L.text(e.arrived), L.opt(e.since), L.text(e.rank), L.text(now),
    L.text(e.charge),
  }, '\t'))
end

function L.ref_in(member) return member:sub(30) end -- rank 13, sequence 15, tab

-- Walks a sorted set of heads in order until `take` says stop; bounded.
function L.walk(key, by_rank, take)
  for from = 0, MOST_SCANNED - 1, 16 do
    local page
    if by_rank then
      page = call('ZRANGEBYSCORE', key, '-inf', L.text(now), 'LIMIT', from, 16)
    else
      page = call('ZRANGE', key, from, from + 15)
    end
    for _, member in ipairs(page) do
      local e = L.load_entry(L.ref_in(member))
      if e and take(e) then return e end
    end
    if #page < 16 then return nil end
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
  if L.get('pq:' .. pool .. '\tb') > 0 then
    candidate = L.walk(prefix .. 'ready:' .. pool, true, admissible)
      or L.walk(prefix .. 'fair:' .. pool .. '\tb', false, admissible)
  end
  if L.get('pq:' .. pool .. '\ti') == 0 then return candidate end
  local chosen = L.walk(prefix .. 'fair:' .. pool .. '\ti', false, function(e)
    return (not candidate or L.before(e, candidate)) and admissible(e)
  end)
  return chosen or candidate
end

function L.has_free_slot(pool)
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.pool == pool and r.accepts and L.get('r:' .. name) < r.now then return true end
  end
  return false
end

function L.at_bound(e)
  return (e.bypassed or 0) >= MOST_BYPASSED
    or (e.first_bypass and now - e.first_bypass >= LONGEST_BYPASS)
end

function L.start_one(pool)
  if not L.has_free_slot(pool) or L.get('ready:' .. pool) == 0 then return false end
  if L.is_all_kept(pool) then return false end
  local reserved = { slots = {}, prefill = {}, batch = false }
  local aside, is_aside = {}, {}
  for _ = 1, MOST_SET_ASIDE do
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

local starts = 0
function L.dispatch()
  for _, pool in ipairs(pool_names) do
    local lent = L.is_lent(pool) and 1 or 0
    if L.get('lent:' .. pool) ~= lent then
      L.set('lent:' .. pool, lent)
      L.touch_pool(pool, 'b')
    end
  end
  L.settle_flows()
  if not L.is_open() then return end
  for _, pool in ipairs(pool_names) do
    while starts < MOST_STARTS and L.start_one(pool) do
      starts = starts + 1
      L.settle_flows()
    end
  end
end

------------------------------------------------------------------------------- places

function L.drop_place(id)
  local line = call('HGET', PLACES, id)
  if not line then return end
  local f = L.fields(line) -- key, body, sequence, since, ends, pool, class, user
  call('HDEL', PLACES, id)
  call('ZREM', PLACE_ENDS, id)
  L.add('pl:' .. f[6] .. '\t' .. f[7] .. '\t' .. f[8], -1)
  local body = f[1] .. '\t' .. f[2]
  if f[2] ~= '' and call('HGET', PLACE_OF, body) == id then call('HDEL', PLACE_OF, body) end
end

function L.keep_place(e, s, since, retry)
  local most = 0
  if e.cls == 'b' then
    most = L.window_size(e.user)
  else
    local p = L.user_policy(e.cls, e.user)
    most = p and tonumber(p[3]) or 0
  end
  if L.get('pl:' .. e.flow) >= most then return '' end
  L.drop_place(e.id)
  local ends = now + retry + PLACE_GRACE
  call('HSET', PLACES, e.id, table.concat({
    e.key, e.body, L.text(s), L.opt(since), L.text(ends), e.flow,
  }, '\t'))
  call('ZADD', PLACE_ENDS, ends, e.id)
  L.add('pl:' .. e.flow, 1)
  if e.body ~= '' then call('HSET', PLACE_OF, e.key .. '\t' .. e.body, e.id) end
  return e.id
end

function L.take_place(e)
  local id = e.place
  if id == '' and e.body ~= '' then
    id = call('HGET', PLACE_OF, e.key .. '\t' .. e.body) or ''
  end
  local line = id ~= '' and call('HGET', PLACES, id)
  if not line then return nil end
  local f = L.fields(line)
  if f[1] ~= e.key or f[6] .. '\t' .. f[7] .. '\t' .. f[8] ~= e.flow then return nil end
  L.drop_place(id)
  if tonumber(f[5]) <= now then return nil end
  return { seq = tonumber(f[3]), since = L.number(f[4]) }
end

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
  return max(tonumber(call('HGET', prefix .. 'sum:' .. c.window, c.counter)) or 0, c.floor)
end

function L.level_of(c)
  local line = call('GET', prefix .. 'm:' .. c.counter)
  if not line then return 0 end
  local f = L.fields(line)
  return max(0, tonumber(f[1]) - c.limit * max(0, now - tonumber(f[2])))
end

function L.has_quota(c)
  if c.window ~= '' then return L.sum_of(c) + c.amount <= c.limit end
  return L.level_of(c) + c.amount * MINUTE <= c.limit * MINUTE
end

function L.quota_state(c)
  local used, wait
  if c.window ~= '' then
    used, wait = L.sum_of(c), max(0, c.ends - L.wall())
  else
    local level = L.level_of(c)
    used = -floor(-level / MINUTE)
    if c.amount <= c.limit then
      local missing = level + (c.amount - c.limit) * MINUTE
      wait = c.limit > 0 and max(0, -floor(-missing / c.limit)) or 0
    end
  end
  return table.concat({ c.counter, c.window, L.text(used), L.text(c.limit), L.opt(wait) }, '\31')
end

function L.count_quota(c, amount)
  if c.window ~= '' then
    local key = prefix .. 'sum:' .. c.window
    call('HSET', key, c.counter, L.text(max(0, L.sum_of(c) + amount)))
    call('PEXPIRE', key, L.text(max(0, c.ends - L.wall()) + KEEP_SUMS))
  else
    local level = max(0, L.level_of(c) + amount * MINUTE)
    call('SET', prefix .. 'm:' .. c.counter, L.text(level) .. '\t' .. L.text(now), 'PX', 4 * MINUTE)
  end
end

function L.reserve_quota(e, again)
  if e.charges == '' then return end
  for _, c in ipairs(L.charges_of(e.charges)) do
    if c.settles or not again then L.count_quota(c, c.amount) end
  end
end

function L.settle_quota(e, tokens)
  if e.charges == '' then return end
  for _, c in ipairs(L.charges_of(e.charges)) do
    if c.settles then L.count_quota(c, tokens - c.amount) end
  end
end

------------------------------------------------------------------------------- leaving the queue

function L.turn(e, code, outcome, retry, place, limit, quota)
  L.tell(e.gateway, table.concat({
    'T', e.id, code, outcome or '', L.opt(retry), place or '', L.opt(limit), quota or '',
  }, '\t'))
end

function L.drop_queued(e)
  L.settle_quota(e, 0)
  L.unqueue(e)
  L.leave(e)
  L.open_window(e.flow)
end

function L.hold_average(kind)
  local n = L.get('hold:' .. kind)
  if n == 0 then return DEFAULT_HOLD end
  return n - 1
end

function L.evict(e)
  local slots = L.get('su:' .. e.pool)
  if e.cls == 'b' then slots = L.batch_limit(e.pool) end
  local wait = floor(L.hold_average(e.kind) * L.get('pq:' .. e.kind) / max(1, slots))
  local retry = max(SHORTEST_RETRY, wait)
  local place = L.keep_place(e, e.seq, e.since, retry)
  L.drop_queued(e)
  if L.get('down:' .. e.pool) > 0 then
    L.turn(e, 'no_replica', 'evicted_no_replica', retry, place)
  else
    L.turn(e, 'queue_timeout', 'evicted_timed_out', retry, place)
  end
end

function L.revoke(e)
  L.drop_queued(e)
  L.turn(e, 'revoked', 'evicted_revoked')
end

------------------------------------------------------------------------------- entering

function L.largest_weight(e)
  local total, largest = 0, 0
  for _, name in ipairs(replica_names) do
    local r = replicas[name]
    if r.registered and r.pool == e.pool then
      total, largest = total + r.slots, max(largest, r.slots)
    end
  end
  if largest == 0 then return nil end
  local key, user = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user)
  local most = min(largest, tonumber(key[3]), L.user_cap(L.number(user[2]), e.cls, total))
  if e.cls == 'b' then most = min(most, L.batch_slots(pools[e.pool].busy, nil, total, false)) end
  return most
end

function L.is_full(e)
  local key, user, pool = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user), pools[e.pool]
  local bound = e.cls == 'b' and pool.bound_b or pool.bound_i
  local code, limit, busy
  if L.get('kq:' .. e.owner_key) >= tonumber(key[4]) then
    code, limit, busy = 'queue_full_key', tonumber(key[4]), L.get('k:' .. e.owner_key)
  elseif L.get('uq:' .. e.owner_user) >= tonumber(user[3]) then
    code, limit, busy = 'queue_full_key', tonumber(user[3]), L.get('u:' .. e.owner_user)
  elseif L.get('pq:' .. e.kind) >= bound then
    code, limit, busy = 'queue_full', bound, L.get('pt:' .. e.kind) - L.get('pq:' .. e.kind)
  else
    return false
  end
  local retry, place = max(SHORTEST_RETRY, floor(L.hold_average(e.kind) / max(1, busy))), ''
  if e.cls == 'i' then
    seq = seq + 1
    place = L.keep_place(e, seq, now, retry)
  end
  L.turn(e, code, nil, retry, place, limit)
  return true
end

-- A ticket that nobody stands before and that fits now needs no queue.
function L.start_at_once(e)
  L.settle_flows()
  if not L.is_open() or L.get('ready:' .. e.pool) > 0 or L.get('n:' .. e.flow) > 0 then return false end
  if not L.has_own_room(e) then return false end
  local name = L.fit(e, { slots = {}, prefill = {}, batch = false })
  if not name then return false end
  if e.cls == 'b' and L.window_size(e.user) > 0 then e.since = e.since or now end
  L.start(e, name)
  return true
end

function L.take_in(e)
  if not e.since and e.cls == 'i' then e.since = now end
  L.enter(e)
  -- Entering ends the loan to batch, or lifts V: both are settled by the dispatch that follows.
  if L.start_at_once(e) then return end
  L.queue(e)
  L.open_window(e.flow, e)
  L.tell(e.gateway, table.concat({ 'Q', e.id, L.text(e.seq), L.text(e.arrived), L.opt(e.since) }, '\t'))
end

function L.new_entry(id, ticket)
  local e = {
    gateway = gateway, id = id, ref = gateway .. '\t' .. id, replica = '', avoid = '',
    accepted = 1, charge = 0, reading = 0, bypassed = 0,
  }
  L.read_ticket(e, ticket)
  return e
end

------------------------------------------------------------------------------- what time brings

function L.decay()
  local minute = floor(now / DECAY_STEP)
  local steps = min(minute - tonumber(meta[6]), MOST_DECAYS)
  meta[6] = L.text(minute)
  if steps <= 0 then return end
  local function shrunk(n)
    for _ = 1, steps do
      n = n * 933
      n = (n - n % 1000) / 1000
    end
    return n
  end
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do
    for _, e in ipairs(L.load_all(name, true)) do
      if e.charge > 0 then
        local charge = shrunk(e.charge)
        L.add('uc:' .. e.owner_user, charge - e.charge)
        e.charge = charge
        L.changed(e)
      end
    end
  end
  local raw = call('HGETALL', SERVICE)
  for i = 1, #raw, 2 do L.service_of(raw[i]) end
  for owner, n in pairs(service) do
    service[owner] = shrunk(n)
    service_dirty[owner] = true
    L.stand(owner)
    if L.get('uq:' .. owner) > 0 then L.touch(owner) end
  end
end

function L.drop(e, keeps_charge)
  if e.replica == '' then return L.drop_queued(e) end
  -- What a dead process's ticket really used died with it: the estimate is kept.
  L.serve(e.owner_user, keeps_charge and 0 or -e.charge, -e.charge)
  L.settle_quota(e, keeps_charge and e.u + min(e.o, OUTPUT_CAP) or 0)
  L.unhold(e)
  L.leave(e)
end

function L.silence(name)
  if L.get('w:' .. name) == 0 then return end
  for _, e in ipairs(L.load_all(name)) do
    if e.replica == '' or e.accepted == 0 then
      if e.interrupted ~= '' then call('RPUSH', prefix .. 'x:' .. name, e.interrupted) end
      L.drop(e, false)
    end
  end
  L.set('a:' .. name, 1)
  call('DEL', prefix .. 'in:' .. name)
end

function L.append_usage(record) return call('XADD', USAGE, '*', 'r', record) end

function L.on_replica(record, name)
  local from, to = record:find('"replica_id":""', 1, true)
  if not from then return record end
  return record:sub(1, to - 1) .. name .. record:sub(to)
end

function L.reap(name)
  for _, e in ipairs(L.load_all(name)) do
    if e.interrupted ~= '' then L.append_usage(L.on_replica(e.interrupted, e.replica)) end
    L.drop(e, e.accepted == 1)
  end
  for _, record in ipairs(call('LRANGE', prefix .. 'x:' .. name, 0, -1)) do L.append_usage(record) end
  call('DEL', prefix .. 'x:' .. name, prefix .. 'in:' .. name)
  call('ZREM', HEARD, name)
  L.set('s:' .. name, 0)
  L.set('a:' .. name, 0)
  L.set('w:' .. name, 0)
  for _, field in ipairs(call('HKEYS', FLEET)) do
    if field:sub(1, 1) == 'o' and field:sub(-#name - 1) == '\t' .. name then
      call('HDEL', FLEET, field)
    end
  end
  L.refresh_fleet()
end

function L.late_in(key, until_ms)
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', L.text(until_ms), 'LIMIT', 0,
    MOST_EVICTIONS)) do
    local e = L.load_entry(member:sub(17)) -- sequence 15, tab
    if e then found[#found + 1] = e end
  end
  return found
end

function L.sweep()
  L.decay()
  local late = call('ZRANGEBYSCORE', HEARD, '-inf', L.text(now - SILENCE), 'WITHSCORES')
  local names, heard = {}, {}
  for i = 1, #late, 2 do
    names[#names + 1] = late[i]
    heard[late[i]] = tonumber(late[i + 1])
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if name ~= gateway then
      if now - heard[name] >= LIMIT then L.reap(name) else L.silence(name) end
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', PLACE_ENDS, '-inf', L.text(now), 'LIMIT', 0, 64)) do
    L.drop_place(id)
  end
  for _, e in ipairs(L.late_in(DEADLINES, now)) do L.evict(e) end
  for _, pool in ipairs(pool_names) do
    local down = L.get('down:' .. pool)
    if down > 0 and now - down >= NO_REPLICA then
      for _, e in ipairs(L.late_in(prefix .. 'a:' .. pool, now - NO_REPLICA)) do L.evict(e) end
    end
  end
end

------------------------------------------------------------------------------- operations

local operations = {}

function operations.E(id, ticket) -- enqueue
  local e = L.new_entry(id, ticket)
  if L.load_entry(e.ref) then return L.turn(e, 'duplicate_ticket') end
  local key = L.key_policy(e.cls, e.key)
  if key and key[2] ~= '1' then return L.turn(e, 'revoked') end
  if not key or not L.user_policy(e.cls, e.user) or not pools[e.pool] then
    return L.turn(e, 'directory_unavailable', nil, 5000)
  end
  local largest = L.largest_weight(e)
  if largest and e.w > largest then return L.turn(e, 'weight_too_large', nil, nil, '', largest) end
  for _, c in ipairs(L.charges_of(e.charges)) do
    if not L.has_quota(c) then
      local state = L.quota_state(c)
      local wait = L.number(state:match('[^\31]*$'))
      return L.turn(e, 'over_quota', nil, wait, '', c.limit, state)
    end
  end
  local place = L.take_place(e)
  if not place and L.is_full(e) then return end
  L.reserve_quota(e)
  seq = seq + 1
  e.seq, e.since = seq, nil
  if place then e.seq, e.since = place.seq, place.since end
  e.arrived, e.deadline = now, now + e.ttl
  L.take_in(e)
end

function operations.C(id) -- cancel
  local e = L.own(id, true)
  if e then L.drop_queued(e) end
end

function operations.R(id, line) -- release: outcome, prompt, completion, all tokens, record
  local e = L.own(id, false)
  if not e then return end
  local f = L.fields(line)
  local p = L.user_policy(e.cls, e.user)
  local cost = (tonumber(f[2]) + 2 * tonumber(f[3])) * 1000
  local used = floor(cost / max(1, p and tonumber(p[4]) or 1))
  L.serve(e.owner_user, used - e.charge, -e.charge)
  if f[1] == 'served' then
    local function average(name, sample) -- stored plus one, so that 0 means none
      local old = L.get(name)
      if old == 0 then L.set(name, sample + 1) else
        L.set(name, floor(((old - 1) * 7 + sample) / 8) + 1)
      end
    end
    average('avg:' .. e.flow, tonumber(f[3]))
    average('hold:' .. e.kind, now - e.started)
    L.bind(e)
  end
  L.settle_quota(e, tonumber(f[4]))
  L.unhold(e)
  L.leave(e)
  if f[5] ~= '' then L.tell(gateway, 'R\t' .. id .. '\t' .. L.append_usage(f[5])) end
end

function operations.B(id, avoid) -- put back
  local e = L.own(id, false)
  if not e then return end
  L.give_back(e)
  e.avoid = avoid
  L.queue(e)
  L.open_window(e.flow)
  local key = L.key_policy(e.cls, e.key)
  if now >= e.deadline then L.evict(e) elseif key and key[2] ~= '1' then L.revoke(e) end
end

function operations.P(id) -- the prompt has been read
  local e = L.own(id, false)
  if e then L.stop_reading(e) end
end

function L.is_older(name, version)
  local known = L.policy(name)
  return known and tonumber(known[1]) > version
end

function L.write_policy(name, line)
  call('HSET', CONFIG, name, line)
  policies[name] = L.fields(line)
end

function operations.K(owner_key, line) -- caps of a key in a class
  local f, name = L.fields(line), 'k\t' .. owner_key
  if L.is_older(name, tonumber(f[1])) or call('HGET', CONFIG, name) == line then return end
  L.write_policy(name, line)
  local waiting = {}
  for _, flow in ipairs(L.flows_of_key(owner_key)) do
    L.touch(flow:match('\t(.*)$'))
    for _, ref in ipairs(call('ZRANGE', prefix .. 'q:' .. flow .. '\t' .. owner_key:sub(3), 0, -1)) do
      waiting[#waiting + 1] = L.load_entry(ref) or nil
    end
  end
  if f[2] ~= '1' then
    table.sort(waiting, function(a, b) return a.seq < b.seq end)
    for _, e in ipairs(waiting) do L.revoke(e) end
  end
end

function operations.U(owner_user, line) -- caps and share of a user in a class
  local f, name = L.fields(line), 'u\t' .. owner_user
  if L.is_older(name, tonumber(f[1])) or call('HGET', CONFIG, name) == line then return end
  L.write_policy(name, line)
  L.touch(owner_user)
  if owner_user:sub(1, 1) == 'b' then
    for _, pool in ipairs(pool_names) do L.open_window(pool .. '\t' .. owner_user) end
  end
end

function operations.L(pool, line) -- how a pool is shared
  local known = pools[pool]
  if known and known.version > tonumber(L.fields(line)[1]) then return end
  call('HSET', FLEET, 'p\t' .. pool, line)
  L.refresh_fleet()
end

function operations.V(name, line) -- a replica of the books
  local known = replicas[name]
  if known and known.registered and known.version > tonumber(L.fields(line)[1]) then return end
  call('HSET', FLEET, 'r\t' .. name, line)
  call('HDEL', FLEET, 'x\t' .. name)
  L.refresh_fleet()
end

function operations.X(name) -- a replica is forgotten
  local known = replicas[name]
  if not known then return end
  for _, field in ipairs(call('HKEYS', FLEET)) do
    if field == 'r\t' .. name or field == 'i\t' .. name or field:sub(1, #name + 3) == 'o\t' .. name .. '\t' then
      call('HDEL', FLEET, field)
    end
  end
  if L.get('r:' .. name) > 0 then call('HSET', FLEET, 'x\t' .. name, known.pool) end
  L.refresh_fleet()
end

function operations.O(name, line) -- a replica as this process sees it
  local known = replicas[name]
  if not known or not known.registered then return end
  local f = L.fields(line) -- accepts, slots, affine, incarnation
  call('HSET', FLEET, 'o\t' .. name .. '\t' .. gateway, f[1] .. '\t' .. f[2] .. '\t' .. f[3])
  if f[4] ~= '' then call('HSET', FLEET, 'i\t' .. name, f[4]) end
  L.refresh_fleet()
end

function operations.A(ms) -- advance ledger time
  ms = tonumber(ms)
  if not testing or ms <= 0 then return end
  now = now + ms
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do call('ZINCRBY', HEARD, ms, name) end
  L.sweep()
end

function operations.H(id, line) -- adopt a lease: its header, a carriage return, the ticket
  local ref = gateway .. '\t' .. id
  if L.load_entry(ref) then return end
  local e = L.read_entry(gateway, id, line)
  local charge, reads = e.charge, e.reading
  e.charge, e.reading = 0, 0
  if not replicas[e.replica] then
    call('HSET', FLEET, 'x\t' .. e.replica, e.pool)
    L.refresh_fleet()
  end
  e.deadline, e.rank = e.arrived + e.ttl, L.rank_of(e)
  seq = max(seq, e.seq)
  L.enter(e)
  L.hold(e, e.replica, charge, reads > 0)
  L.reserve_quota(e, true)
end

function operations.W(id, line) -- adopt a waiting ticket
  if L.load_entry(gateway .. '\t' .. id) then return end
  local e = L.read_entry(gateway, id, line)
  e.deadline = e.arrived + e.ttl
  seq = max(seq, e.seq)
  L.reserve_quota(e, true)
  L.take_in(e)
end

function operations.Q(_, line) -- where counted limits stand
  local states = {}
  for _, c in ipairs(L.charges_of(line)) do states[#states + 1] = L.quota_state(c) end
  answers[#answers + 1] = 'U\t' .. table.concat(states, '\30')
end

function operations.D() -- everything but the policies of those who have nothing here
  local function row(table_name, field, value)
    answers[#answers + 1] = 'D\t' .. table_name .. '\r' .. field .. '\r' .. value
  end
  for _, key in ipairs({ COUNTS, SERVICE, FLEET, HEADS, META }) do
    local raw = call('HGETALL', key)
    for i = 1, #raw, 2 do row(key:sub(#prefix + 1), raw[i], raw[i + 1]) end
  end
  local owners = {}
  for _, name in ipairs(call('ZRANGE', HEARD, 0, -1)) do
    local raw = call('HGETALL', prefix .. 'g:' .. name)
    for i = 1, #raw, 2 do
      row('g:' .. name, raw[i], raw[i + 1])
      local key, user, cls = raw[i + 1]:match('\r([^\t]*)\t([^\t]*)\t([^\t]*)')
      owners['k\t' .. cls .. '\t' .. key] = true
      owners['u\t' .. cls .. '\t' .. user] = true
    end
  end
  for name in pairs(owners) do
    local line = call('HGET', CONFIG, name)
    if line then row('cfg', name, line) end
  end
end

------------------------------------------------------------------------------- the step

function L.save()
  L.settle_flows()
  L.flush_entries()
  L.flush(COUNTS, counts, counts_dirty)
  L.flush(SERVICE, service, service_dirty)
  L.write_meta()
  entries_dirty, counts_dirty, service_dirty = {}, {}, {}
end

L.refresh_fleet()
if adopts then
  for _, e in ipairs(L.load_all(gateway)) do L.drop(e, false) end
  answers = {} -- what the dropping said of entries dropped a moment later
  call('DEL', prefix .. 'in:' .. gateway, prefix .. 'x:' .. gateway)
else
  local inbox = prefix .. 'in:' .. gateway
  local waiting = L.get('w:' .. gateway) > 0 or call('EXISTS', inbox) == 1
  if waiting then
    for _, line in ipairs(call('LRANGE', inbox, 0, -1)) do
      answers[#answers + 1] = line
      if line:sub(1, 1) == 'S' then
        local e = L.load_entry(gateway .. '\t' .. line:match('^S\t([^\t]*)'))
        if e then L.accept(e) end
      end
    end
    call('DEL', inbox)
  end
end
L.sweep()
-- Of an adoption nothing may start before all its leases are told: they are in use at the engines.
if not adopts then L.dispatch() end
for i = 7, #ARGV, 3 do
  if ARGV[i] == 'D' then L.save() end
  operations[ARGV[i]](ARGV[i + 1], ARGV[i + 2])
  if ARGV[i] ~= 'H' then L.dispatch() end
end
L.dispatch()
L.save()
for name in pairs(poked) do call('PUBLISH', prefix .. 'poke:' .. name, '') end
return table.concat({ sequence, L.text(now), L.is_open() and '1' or '0' }, '\t')
  .. '\n' .. table.concat(answers, '\n')
