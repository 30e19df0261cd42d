
------------------------------------------------------------------------------- leaving the queue

function L.turned(e, code, outcome, retry, place, limit, quota)
  return table.concat({
    'T', e.id, code, outcome or '', L.opt(retry), place or '', L.opt(limit), quota or '',
  }, '\t')
end

function L.turn(e, ...) L.tell(e.gateway, L.turned(e, ...)) end

function L.drop_queued(e)
  L.settle_quota(e, 0)
  L.unqueue(e)
  L.leave(e)
  L.open_window(e.flow, e.cls, e.user)
end

function L.hold_average(e)
  local n = L.get(e.n_hold)
  if n == 0 then return K.DEFAULT_HOLD end
  return n - 1
end

function L.evict(e)
  local slots = L.get('su:' .. e.pool)
  if e.cls == 'b' then slots = L.batch_limit(e.pool) end
  local wait = floor(L.hold_average(e) * L.get(e.n_pq) / max(1, slots))
  local retry = max(K.SHORTEST_RETRY, wait)
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
  for _, r in ipairs(pools[e.pool].all) do
    if r.registered then total, largest = total + r.slots, max(largest, r.slots) end
  end
  if largest == 0 then return nil end
  local key, user = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user)
  local most = min(largest, tonumber(key[3]), L.user_cap(L.number(user[2]), e.cls, total))
  if e.cls == 'b' then most = min(most, L.batch_slots(pools[e.pool].busy, nil, total, false)) end
  return most
end

-- Why a ticket may not even wait, apart from full queues.
function L.turned_away(e, charges)
  if L.load_entry(e.ref) then return L.turned(e, 'duplicate_ticket') end
  local key = L.key_policy(e.cls, e.key)
  if key and key[2] ~= '1' then return L.turned(e, 'revoked') end
  if not key or not L.user_policy(e.cls, e.user) or not pools[e.pool] then
    return L.turned(e, 'directory_unavailable', nil, 5000)
  end
  local largest = L.largest_weight(e)
  if largest and e.w > largest then
    return L.turned(e, 'weight_too_large', nil, nil, '', largest)
  end
  for _, c in ipairs(charges) do
    if not L.has_quota(c) then
      local state = L.quota_state(c, c.amount)
      local wait = L.number(state:match('[^\31]*$'))
      return L.turned(e, 'over_quota', nil, wait, '', c.limit, state)
    end
  end
end

-- The refusal of a full queue; an interactive ticket keeps its place in it.
function L.full_queue(e)
  local key, user, pool = L.key_policy(e.cls, e.key), L.user_policy(e.cls, e.user), pools[e.pool]
  local bound = e.cls == 'b' and pool.bound_b or pool.bound_i
  local code, limit, busy
  if L.get(e.n_kq) >= tonumber(key[4]) then
    code, limit, busy = 'queue_full_key', tonumber(key[4]), L.get(e.n_k)
  elseif L.get(e.n_uq) >= tonumber(user[3]) then
    code, limit, busy = 'queue_full_key', tonumber(user[3]), L.get(e.n_u)
  elseif L.get(e.n_pq) >= bound then
    code, limit, busy = 'queue_full', bound, L.get(e.n_pt) - L.get(e.n_pq)
  else
    return nil
  end
  local retry, place = max(K.SHORTEST_RETRY, floor(L.hold_average(e) / max(1, busy))), ''
  if e.cls == 'i' then
    seq = seq + 1
    place = L.keep_place(e, seq, now, retry)
  end
  return L.turned(e, code, nil, retry, place, limit)
end

local NOTHING_RESERVED = { slots = {}, prefill = {}, batch = false }

-- A ticket that nobody stands before and that fits now needs no queue.
function L.start_at_once(e)
  L.settle_flows()
  if not L.is_open() or L.get('ready:' .. e.pool) > 0 or L.get(e.n_n) > 0 then return false end
  if not L.has_own_room(e) then return false end
  local name = L.fit(e, NOTHING_RESERVED)
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
  L.open_window(e.flow, e.cls, e.user, e)
  L.tell(e.gateway, table.concat({ 'Q', e.id, L.text(e.seq), L.text(e.arrived), L.opt(e.since) }, '\t'))
end
