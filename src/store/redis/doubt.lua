-- record.rs: doubt. ARGV: … 8 reason, 9 status, 10 fields, 11 body, 12 flags of the response (0 without one).
local answer, since = 'held', now
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  -- The store forgot, the attempt did not. Absent would be run again.
  become_granted()
  answer = 'rewritten'
elseif owner ~= token or state == COMPLETED then
  return { 'lost' }
elseif state == UNKNOWN then
  since = moment
end
become_unknown(since, tonumber(ARGV[8]))
save(take_response(ARGV[9], ARGV[10], ARGV[11], ARGV[12]))
publish()
return { answer }
