-- record.rs: complete. ARGV: … 8 retention, 9 status, 10 fields, 11 body, 12 flags of the response,
-- 13 the largest body that comes along when there already is a completed record.
local answer = 'stored'
if state == COMPLETED then
  if conflicts() then return { 'lost' } end
  return completed(ARGV[13])
end
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  -- An answer proves an execution, whatever the store remembers.
  become_granted()
  answer = 'rewritten'
elseif owner ~= token then
  return { 'lost' }
end
local tail = take_response(ARGV[9], ARGV[10], ARGV[11], ARGV[12])
become_completed(ARGV[8])
save(tail)
publish()
return { answer }
