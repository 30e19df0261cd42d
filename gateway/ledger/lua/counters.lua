
function L.text(n) return format('%.0f', n) end
function L.padded(n) return format('%015.0f', n) end
function L.number(s) if s and s ~= '' then return tonumber(s) end end
function L.opt(n) if n then return format('%.0f', n) end return '' end
function L.fields(line)
  local out, n = {}, 0
  for value in (line .. '\t'):gmatch('([^\t]*)\t') do
    n = n + 1
    out[n] = value
  end
  return out
end

-- Writes the dirty numbers of a cache into their hash; a zero is no field.
function L.flush(key, cache, dirty)
  local sets, drops, n, m = {}, {}, 0, 0
  for name in pairs(dirty) do
    local value = cache[name]
    if value == 0 then
      m = m + 1
      drops[m] = name
    else
      sets[n + 1], sets[n + 2] = name, format('%.0f', value)
      n = n + 2
    end
    if n >= 1000 then
      call('HSET', key, unpack(sets))
      sets, n = {}, 0
    end
    if m >= 1000 then
      call('HDEL', key, unpack(drops))
      drops, m = {}, 0
    end
  end
  if n > 0 then call('HSET', key, unpack(sets)) end
  if m > 0 then call('HDEL', key, unpack(drops)) end
end

------------------------------------------------------------------------------- counters

function L.get(name)
  local n = counts[name]
  if n == nil then
    n = tonumber(call('HGET', K.COUNTS, name)) or 0
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
function L.add(name, n)
  if n ~= 0 then
    counts[name] = (counts[name] or L.get(name)) + n
    counts_dirty[name] = true
  end
end

-- V of class and user
function L.service_of(owner)
  local n = service[owner]
  if n == nil then
    n = tonumber(call('HGET', K.SERVICE, owner)) or 0
    service[owner] = n
  end
  return n
end

------------------------------------------------------------------------------- answers

function L.tell(owner, line)
  if owner == gateway then
    answers[#answers + 1] = line
  else
    call('RPUSH', prefix .. 'in:' .. owner, line)
    L.add('il:' .. owner, 1)
    poked[owner] = true
  end
end
