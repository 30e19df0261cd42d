
------------------------------------------------------------------------------- what time brings

function L.decay()
  local this = floor(now / K.DECAY_STEP)
  local steps = min(this - minute, K.MOST_DECAYS)
  minute = this
  L.shut_older()
  if steps <= 0 then return end
  local function shrunk(n)
    for _ = 1, steps do
      n = n * 933
      n = (n - n % 1000) / 1000
    end
    return n
  end
  for _, name in ipairs(call('ZRANGE', K.HEARD, 0, -1)) do
    for _, e in ipairs(L.load_all(name, true)) do
      if e.charge > 0 then
        local charge = shrunk(e.charge)
        L.add('uc:' .. e.owner_user, charge - e.charge)
        e.charge = charge
        L.changed(e)
      end
    end
  end
  local raw = call('HGETALL', K.SERVICE)
  for i = 1, #raw, 2 do L.service_of(raw[i]) end
  for owner, n in pairs(service) do
    service[owner] = shrunk(n)
    service_dirty[owner] = true
    if L.get('ut:' .. owner) > 0 then L.stand(owner) end
    if L.get('uq:' .. owner) > 0 then L.touch(owner) end
  end
end

function L.drop(e, keeps_charge)
  if e.replica == '' then return L.drop_queued(e) end
  -- What a dead process's ticket really used died with it: the estimate is kept.
  L.serve(e.owner_user, keeps_charge and 0 or -e.charge, -e.charge)
  L.settle_quota(e, keeps_charge and e.u + min(e.o, K.OUTPUT_CAP) or 0)
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
  L.set('il:' .. name, 0)
end

function L.append_usage(record) return call('XADD', K.USAGE, '*', 'r', record) end

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
  call('ZREM', K.HEARD, name)
  L.set('s:' .. name, 0)
  L.set('a:' .. name, 0)
  L.set('w:' .. name, 0)
  L.set('il:' .. name, 0)
  for _, field in ipairs(call('HKEYS', K.FLEET)) do
    if field:sub(1, 1) == 'o' and field:sub(-#name - 1) == '\t' .. name then
      call('HDEL', K.FLEET, field)
    end
  end
  L.refresh_fleet()
  L.tell_roster()
end

function L.late_in(key, until_ms)
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', L.text(until_ms), 'LIMIT', 0,
    K.MOST_EVICTIONS)) do
    local e = L.load_entry(member:sub(17)) -- sequence 15, tab
    if e then found[#found + 1] = e end
  end
  return found
end

-- The first instant at which there is something for a sweep to do; never later than it really is.
function L.next_due(late)
  local at = (floor(now / K.DECAY_STEP) + 1) * K.DECAY_STEP
  local function by(score, more) if score then at = min(at, tonumber(score) + more) end end
  for _, heard in pairs(late) do by(heard, K.LIMIT) end
  by(call('ZRANGEBYSCORE', K.HEARD, '(' .. L.text(now - K.SILENCE), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2],
    K.SILENCE)
  by(call('ZRANGE', K.PLACE_ENDS, 0, 0, 'WITHSCORES')[2], 0)
  by(call('ZRANGE', K.DEADLINES, 0, 0, 'WITHSCORES')[2], 0)
  for _, pool in ipairs(pool_names) do
    local down = L.get('down:' .. pool)
    if down > 0 then
      local first = call('ZRANGE', prefix .. 'a:' .. pool, 0, 0, 'WITHSCORES')[2]
      if first then at = min(at, max(down, tonumber(first)) + K.NO_REPLICA) end
    end
  end
  return at
end

function L.sweep()
  if minute < floor(now / K.DECAY_STEP) then L.decay() end
  local late = call('ZRANGEBYSCORE', K.HEARD, '-inf', L.text(now - K.SILENCE), 'WITHSCORES')
  local names, heard = {}, {}
  for i = 1, #late, 2 do
    if late[i] ~= gateway then
      names[#names + 1] = late[i]
      heard[late[i]] = tonumber(late[i + 1])
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if now - heard[name] >= K.LIMIT then
      L.reap(name)
      heard[name] = nil
    else
      L.silence(name)
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', K.PLACE_ENDS, '-inf', L.text(now), 'LIMIT', 0, 64)) do
    L.drop_place(id)
  end
  for _, e in ipairs(L.late_in(K.DEADLINES, now)) do L.evict(e) end
  for _, pool in ipairs(pool_names) do
    local down = L.get('down:' .. pool)
    if down > 0 and now - down >= K.NO_REPLICA then
      for _, e in ipairs(L.late_in(prefix .. 'a:' .. pool, now - K.NO_REPLICA)) do L.evict(e) end
    end
  end
  due = L.next_due(heard)
end

------------------------------------------------------------------------------- older layouts

-- A ledger of an older version of this script on the same server is kept closed while this one is
-- in use, so that processes not restarted yet start nothing beside it; when nobody has called it for
-- an hour it is taken away. Should somebody go back to it, it opens within two minutes.
function L.shut_older()
  local older = base .. 'meta'
  local seen = tonumber(call('HGET', older, 'clock') or nil)
  if not seen then return end
  if clock - seen < 3600000 then
    call('HSET', older, 'opens', L.text(clock + 2 * K.DECAY_STEP))
  else
    call('DEL', older, base .. 'c', base .. 'v', base .. 'cfg', base .. 'fleet', base .. 'h',
      base .. 'hb', base .. 'd', base .. 'pl', base .. 'pl:ends', base .. 'pl:body')
  end
end
