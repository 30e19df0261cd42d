
------------------------------------------------------------------------------- entries

-- An entry is one line in the hash of its gateway: what changes, a carriage return, the ticket.
-- What changes, in this order: replica, seq, arrived, deadline, since, started, rank, charge,
-- reading, accepted, pick_since, first_bypass, bypassed, avoid.
local FIELD, REST = '([^\t]*)\t', '([^\t]*)'
local HEADER_PATTERN = '^' .. FIELD:rep(13) .. REST .. '$'
local TICKET_PATTERN = '^' .. FIELD:rep(14) .. REST .. '\t?(.*)$'

function L.read_ticket(e, line)
  local w, u, o, ttl, home_wait
  e.ticket = line
  e.key, e.user, e.cls, e.pool, w, u, o, ttl, home_wait, e.session, e.order, e.place, e.body,
    e.charges, e.interrupted, e.group = line:match(TICKET_PATTERN)
  if e.group == '' then e.group = nil end
  e.w, e.u, e.o, e.ttl, e.home_wait = w + 0, u + 0, o + 0, ttl + 0, home_wait + 0
  local owner_key, owner_user = e.cls .. '\t' .. e.key, e.cls .. '\t' .. e.user
  local flow = e.pool .. '\t' .. owner_user
  e.owner_key, e.owner_user, e.flow = owner_key, owner_user, flow
  e.kind = e.pool .. '\t' .. e.cls
  e.member = e.key .. '\t' .. e.ref -- in the queue of its flow
  e.queue = prefix .. 'q:' .. flow
  -- The counters it is counted in.
  e.n_k, e.n_kq, e.n_fk = 'k:' .. owner_key, 'kq:' .. owner_key, 'fk:' .. flow .. '\t' .. e.key
  e.n_u, e.n_uq, e.n_ut = 'u:' .. owner_user, 'uq:' .. owner_user, 'ut:' .. owner_user
  e.n_uc, e.n_n, e.n_avg = 'uc:' .. owner_user, 'n:' .. flow, 'avg:' .. flow
  e.n_pq, e.n_pt, e.n_hold = 'pq:' .. e.kind, 'pt:' .. e.kind, 'hold:' .. e.kind
end

function L.read_entry(owner, id, line)
  local e = { gateway = owner, id = id, ref = owner .. '\t' .. id }
  local cut = line:find('\r', 1, true)
  local seq_, arrived, deadline, since, started, rank, charge, reading, accepted, pick_since,
    first_bypass, bypassed
  e.replica, seq_, arrived, deadline, since, started, rank, charge, reading, accepted, pick_since,
    first_bypass, bypassed, e.avoid = line:sub(1, cut - 1):match(HEADER_PATTERN)
  e.seq, e.arrived, e.deadline = tonumber(seq_), tonumber(arrived), tonumber(deadline)
  e.since, e.started, e.rank = tonumber(since), tonumber(started), tonumber(rank)
  e.charge, e.reading, e.accepted = tonumber(charge), tonumber(reading), tonumber(accepted)
  e.pick_since, e.first_bypass = tonumber(pick_since), tonumber(first_bypass)
  e.bypassed = tonumber(bypassed)
  L.read_ticket(e, line:sub(cut + 1))
  entries[e.ref] = e
  return e
end

function L.new_entry(id, ticket)
  local e = {
    gateway = gateway, id = id, ref = gateway .. '\t' .. id, replica = '', avoid = '',
    accepted = 1, charge = 0, reading = 0, bypassed = 0,
  }
  L.read_ticket(e, ticket)
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

function L.header_of(e)
  return concat({
    e.replica, format('%.0f', e.seq), format('%.0f', e.arrived), L.opt(e.deadline), L.opt(e.since),
    L.opt(e.started), L.opt(e.rank), L.opt(e.charge), L.opt(e.reading), L.opt(e.accepted),
    L.opt(e.pick_since), L.opt(e.first_bypass), L.opt(e.bypassed), e.avoid,
  }, '\t')
end

function L.flush_entries() -- one command per gateway and kind
  local sets, drops = {}, {}
  for _, e in pairs(entries_dirty) do
    local into = e.gone and drops or sets
    local list = into[e.gateway]
    if not list then
      list = { e.gone and 'HDEL' or 'HSET', prefix .. 'g:' .. e.gateway }
      into[e.gateway] = list
    end
    local n = #list
    list[n + 1] = e.id
    if not e.gone then list[n + 2] = L.header_of(e) .. '\r' .. e.ticket end
    if n >= 1000 then
      call(unpack(list))
      into[e.gateway] = nil
    end
  end
  -- An entry made in this step may stand for one of the same name stored before: drops come first.
  for _, list in pairs(drops) do call(unpack(list)) end
  for _, list in pairs(sets) do call(unpack(list)) end
end

function L.own(id, queued)
  local e = L.load_entry(gateway .. '\t' .. id)
  if e and (e.replica == '') == queued then return e end
end
