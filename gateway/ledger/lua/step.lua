
------------------------------------------------------------------------------- the step


function L.read_meta()
  local meta = call('HMGET', K.META, 'now', 'clock', 'run', 'opens', 'seq', 'minute', 'due', 'fleet')
  now, seq, opens = tonumber(meta[1]), tonumber(meta[5]) or 0, tonumber(meta[4]) or 0
  due = tonumber(meta[7]) or 0
  stored_fleet = meta[8]
  clock = known_time
  if not frozen then
    local t = call('TIME')
    clock = tonumber(t[1]) * 1000 + floor(tonumber(t[2]) / 1000)
  end
  local is_new = not now
  if is_new then
    now = max(clock, known_time)
    L.shut_older()
  else
    local elapsed = frozen and 0 or clock - tonumber(meta[2])
    now = now + min(max(elapsed, 0), K.LONGEST_STEP)
    if adopts and not frozen then now = max(now, known_time) end
    if elapsed >= K.LIMIT / 2 then
      -- Nobody called, so nobody is late.
      for _, name in ipairs(call('ZRANGE', K.HEARD, 0, -1)) do call('ZADD', K.HEARD, now, name) end
    end
  end
  minute = tonumber(meta[6]) or floor(now / K.DECAY_STEP)
  if meta[3] ~= run then
    -- An empty ledger, or a server that may have lost its last second: whatever runs at the engines
    -- must be counted again by its owners before anything new may start.
    opens = alone and now or now + K.LIMIT
    call('DEL', K.AWAITED)
  end
  L.load_fleet(stored_fleet)
end

function L.write_meta()
  local fields = {
    'now', L.text(now), 'clock', L.text(clock), 'run', run, 'opens', L.text(opens),
    'seq', L.text(seq), 'minute', L.text(minute), 'due', L.text(due),
  }
  if fleet_line ~= stored_fleet and fleet_line then
    fields[#fields + 1], fields[#fields + 2] = 'fleet', fleet_line
    stored_fleet = fleet_line
  end
  call('HSET', K.META, unpack(fields))
end

function L.is_open() return now >= opens end

function L.save()
  L.settle_flows()
  L.flush_entries()
  L.flush_heads()
  L.flush_standing()
  L.flush(K.COUNTS, counts, counts_dirty)
  L.flush(K.SERVICE, service, service_dirty)
  L.write_meta()
  entries_dirty, heads_dirty, counts_dirty, service_dirty = {}, {}, {}, {}
end

function L.is_expected()
  local stored = L.get('s:' .. gateway)
  if adopts then return stored ~= tonumber(sequence) end
  return stored == previous and L.get('a:' .. gateway) == 0
end

function L.empty_inbox() -- what others' calls did; its grants are accepted by that
  local lines = 'il:' .. gateway
  if L.get(lines) == 0 then return end
  local inbox = prefix .. 'in:' .. gateway
  for _, line in ipairs(call('LRANGE', inbox, 0, -1)) do
    answers[#answers + 1] = line
    if line:sub(1, 1) == 'S' then
      local e = L.load_entry(gateway .. '\t' .. line:match('^S\t([^\t]*)'))
      if e then L.accept(e) end
    end
  end
  call('DEL', inbox)
  L.set(lines, 0)
end

function L.forget_all() -- before an adoption: what the ledger had of this process
  for _, e in ipairs(L.load_all(gateway)) do L.drop(e, false) end
  answers = {} -- what the dropping said of entries dropped a moment later
  call('DEL', prefix .. 'in:' .. gateway, prefix .. 'x:' .. gateway)
  L.set('il:' .. gateway, 0)
end

