
------------------------------------------------------------------------------- elementary moves

function L.enter(e)
  local user = e.owner_user
  if L.get(e.n_ut) == 0 then
    L.flush_standing()
    local least = call('ZRANGE', prefix .. 'act:' .. e.cls, 0, 0, 'WITHSCORES')[2]
    if least and tonumber(least) > L.service_of(user) then
      service[user] = tonumber(least)
      service_dirty[user] = true
    end
    L.stand(user)
  end
  L.add(e.n_ut, 1)
  L.add(e.n_pt, 1)
  entries[e.ref] = e
  L.changed(e)
end

function L.leave(e)
  L.add(e.n_ut, -1)
  if L.get(e.n_ut) == 0 then L.stand(e.owner_user) end
  L.add(e.n_pt, -1)
  if e.cls == 'i' then L.set('ce:' .. e.pool, now) end
  e.gone = true
  L.changed(e)
  entries[e.ref] = false
end

function L.count_queued(e, n)
  L.add(e.n_kq, n)
  L.add(e.n_uq, n)
  L.add(e.n_pq, n)
  L.add(e.n_n, n)
  L.add(e.n_fk, n)
  L.add('w:' .. e.gateway, n)
  if e.group then L.add('gq:' .. e.pool .. '\t' .. e.group, n) end
  L.touch(e.owner_user)
end

function L.queue(e)
  call('ZADD', e.queue, e.seq, e.member)
  if L.get(e.n_fk) == 0 then call('SADD', prefix .. 'uk:' .. e.owner_key, e.flow) end
  call('ZADD', K.DEADLINES, e.deadline, L.padded(e.seq) .. '\t' .. e.ref)
  due = min(due, e.deadline)
  if L.get('down:' .. e.pool) > 0 then L.note_stranded(e) end
  L.count_queued(e, 1)
end

function L.unqueue(e)
  call('ZREM', e.queue, e.member)
  call('ZREM', K.DEADLINES, L.padded(e.seq) .. '\t' .. e.ref)
  if L.get('down:' .. e.pool) > 0 then
    call('ZREM', prefix .. 'a:' .. e.pool, L.padded(e.seq) .. '\t' .. e.ref)
  end
  L.count_queued(e, -1)
  if L.get(e.n_fk) == 0 then call('SREM', prefix .. 'uk:' .. e.owner_key, e.flow) end
end

function L.flows_of_key(owner_key) -- those with something queued under it
  local flows = call('SMEMBERS', prefix .. 'uk:' .. owner_key)
  table.sort(flows)
  return flows
end

function L.count_held(e, n)
  L.add('r:' .. e.replica, n)
  L.add(e.n_k, n)
  L.add(e.n_u, n)
  if e.cls == 'b' then L.add('b:' .. e.pool, n) end
  if e.group then L.add('gh:' .. e.replica .. '\t' .. e.group, n) end
  L.touch(e.owner_user)
  -- Behind an application key the room that comes free is that of other people as well.
  if L.get(e.n_kq) > L.get(e.n_fk) then
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
    if e.u >= K.LONG_PROMPT then L.add('rl:' .. name, 1) end
  end
  L.changed(e)
end

function L.stop_reading(e)
  if e.reading and e.reading > 0 then
    L.add('rp:' .. e.replica, -e.reading)
    if e.u >= K.LONG_PROMPT then L.add('rl:' .. e.replica, -1) end
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
    call('HDEL', K.FLEET, 'x\t' .. e.replica)
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
