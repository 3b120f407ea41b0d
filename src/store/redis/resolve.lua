-- record.rs: resolve. ARGV: 1 member, 2 token, 3 force, 4 if it was executed, the completed record.
local token = ARGV[2]
if state == 0 then return { 'absent' } end
local lapsed = lapse()
if owner ~= token or state ~= UNKNOWN then
  if lapsed then save_lapsed() end
  return { 'conflict' }
end
if ARGV[4] then
  local tail = take_response(ARGV[4])
  become_completed(ARGV[4])
  save(tail)
elseif now < abandon_at and ARGV[3] ~= '1' then
  if lapsed then save_lapsed() end
  return { 'may-be-running' }
else
  bury(abandon_at - now)
  redis.call('DEL', key)
  redis.call('ZREM', open, member)
end
publish()
return { 'resolved' }
