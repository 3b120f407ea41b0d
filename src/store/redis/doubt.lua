-- record.rs: doubt. The wish is the unknown record.
local answer, since = 'held', now
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  -- The store forgot, the attempt did not. Absent would be run again.
  become_granted(wish)
  answer = 'rewritten'
elseif owner ~= token or state == COMPLETED then
  return { 'lost' }
elseif state == UNKNOWN then
  since = moment
end
become_unknown(since, wish:byte(5))
save(take_response(wish))
publish()
return { answer }
