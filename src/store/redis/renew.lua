-- record.rs: renew. What still lives does not come by here (alive.lua).
if state == 0 then
  if has_tombstone() then return { 'lost' } end
  become_granted(wish)
  save('')
  return { 'rewritten' }
end
if lapse() then save_lapsed() end
if owner ~= token or state == COMPLETED then return { 'lost' } end
return { 'lapsed' }
