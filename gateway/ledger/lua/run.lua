
define()
setmetatable(L, {
  __index = function(_, name) -- a function of a rarer room, for the first time in this step
    define_rare()
    return rawget(L, name)
  end,
})
L.read_meta()
L.fetch_all()
if not L.is_expected() then
  local stands_at = L.text(L.get('s:' .. gateway))
  L.write_meta()
  return concat({ 'ADOPT', sequence, L.text(now), L.is_open() and '1' or '0', stands_at }, '\t')
end
local is_newcomer = call('ZADD', K.HEARD, now, gateway) == 1
L.set('s:' .. gateway, tonumber(sequence))
L.set('a:' .. gateway, 0)
if adopts then L.forget_all() else L.empty_inbox() end
if is_newcomer then L.tell_roster() elseif adopts then L.tell_roster(gateway) end
if now >= due then L.sweep() end
-- Of an adoption nothing may start before all its leases are told: they are in use at the engines.
if not adopts then L.dispatch() end
for i = 7, #ARGV, 3 do
  if ARGV[i] == 'D' then L.save() end
  if not operations[ARGV[i]] then define_rare() end
  operations[ARGV[i]](ARGV[i + 1], ARGV[i + 2], i)
  -- A key's caps for both classes are two lines, but one operation.
  local is_half = ARGV[i] == 'K' and ARGV[i + 3] == 'K'
    and ARGV[i + 1]:sub(3) == ARGV[i + 4]:sub(3) -- behind the class
  if ARGV[i] ~= 'H' and not is_half then L.dispatch() end
end
if not L.is_open() and L.has_heard_all() then
  opens = now
  L.dispatch()
end
L.save()
for name in pairs(poked) do call('PUBLISH', base .. 'poke:' .. name, '') end
return concat({ sequence, L.text(now), L.is_open() and '1' or '0' }, '\t')
  .. '\n' .. concat(answers, '\n')
