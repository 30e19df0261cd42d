
------------------------------------------------------------------------------- operations


function operations.E(id, ticket, at) -- enqueue
  local e = arriving[at]
  local charges = L.charges_of(e.charges)
  local refusal, place = L.turned_away(e, charges), nil
  if not refusal then
    place = L.take_place(e)
    refusal = not place and L.full_queue(e)
  end
  if not refusal then L.reserve_quota(charges) end
  if #charges > 0 then L.tell_limits(id, charges) end
  if refusal then return L.tell(gateway, refusal) end
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
    local function average(name, sample, weight) -- stored plus one, so that 0 means none
      local old = L.get(name)
      if old == 0 then L.set(name, sample + 1) else
        L.set(name, floor(((old - 1) * (weight - 1) + sample) / weight) + 1)
      end
    end
    average(e.n_avg, tonumber(f[3]), 8)
    average(e.n_hold, now - e.started, K.HOLD_WEIGHT)
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
  L.open_window(e.flow, e.cls, e.user)
  local key = L.key_policy(e.cls, e.key)
  if now >= e.deadline then L.evict(e) elseif key and key[2] ~= '1' then L.revoke(e) end
end

function operations.P(id) -- the prompt has been read
  local e = L.own(id, false)
  if e then L.stop_reading(e) end
end
