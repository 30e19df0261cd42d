
------------------------------------------------------------------------------- places

function L.drop_place(id)
  local line = call('HGET', K.PLACES, id)
  if not line then return end
  local f = L.fields(line) -- key, body, sequence, since, ends, pool, class, user
  call('HDEL', K.PLACES, id)
  call('ZREM', K.PLACE_ENDS, id)
  L.add('pl:' .. f[6] .. '\t' .. f[7] .. '\t' .. f[8], -1)
  local body = f[1] .. '\t' .. f[2]
  if f[2] ~= '' and call('HGET', K.PLACE_OF, body) == id then call('HDEL', K.PLACE_OF, body) end
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
  local ends = now + retry + K.PLACE_GRACE
  call('HSET', K.PLACES, e.id, table.concat({
    e.key, e.body, L.text(s), L.opt(since), L.text(ends), e.flow,
  }, '\t'))
  call('ZADD', K.PLACE_ENDS, ends, e.id)
  due = min(due, ends)
  L.add('pl:' .. e.flow, 1)
  if e.body ~= '' then call('HSET', K.PLACE_OF, e.key .. '\t' .. e.body, e.id) end
  return e.id
end

function L.take_place(e)
  local id = e.place
  if id == '' and e.body ~= '' then
    id = call('HGET', K.PLACE_OF, e.key .. '\t' .. e.body) or ''
  end
  local line = id ~= '' and call('HGET', K.PLACES, id)
  if not line then return nil end
  local f = L.fields(line)
  if f[1] ~= e.key or f[6] .. '\t' .. f[7] .. '\t' .. f[8] ~= e.flow then return nil end
  L.drop_place(id)
  if tonumber(f[5]) <= now then return nil end
  return { seq = tonumber(f[3]), since = L.number(f[4]) }
end
