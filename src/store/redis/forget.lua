-- record.rs: forget. ARGV: 1 member, 2 token, 3 force.
local token = ARGV[2]
if state == 0 then return { 'absent' } end
local lapsed = lapse()
if owner ~= token or (state ~= COMPLETED and ARGV[3] ~= '1') then
  if lapsed then save_lapsed() end
  return { 'conflict' }
end
bury(abandon_at - now)
redis.call('DEL', key)
redis.call('ZREM', open, member)
publish()
return { 'forgotten' }
