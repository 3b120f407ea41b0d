-- record.rs: resolve. ARGV: 1 member, 2 token, 3 force, 4 whether it was executed, then as complete: 5 retention,
-- 6 status, 7 fields, 8 body, 9 flags of the response.
if state == 0 then return { 'absent' } end
local lapsed = lapse()
if owner ~= token or state ~= UNKNOWN then
  if lapsed then save_lapsed() end
  return { 'conflict' }
end
if ARGV[4] == '1' then
  local tail = take_response(ARGV[6], ARGV[7], ARGV[8], ARGV[9])
  become_completed(ARGV[5])
  save(tail)
elseif now < abandon_at and ARGV[3] ~= '1' then
  if lapsed then save_lapsed() end
  return { 'may-be-running' }
else
  bury()
  redis.call('DEL', key)
  redis.call('ZREM', open, member)
end
publish()
return { 'resolved' }
