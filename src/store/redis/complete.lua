-- record.rs: complete. The wish is the completed record.
local answer = 'stored'
if state == COMPLETED then
  if likeness() > OTHER_POLICY then return { 'lost' } end
  return completed()
end
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  -- An answer proves an execution, whatever the store remembers.
  become_granted(wish)
  answer = 'rewritten'
elseif owner ~= token then
  return { 'lost' }
end
local tail = take_response(wish)
become_completed(wish)
save(tail)
publish()
return { answer }
