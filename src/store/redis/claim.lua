-- record.rs: claim. ARGV: … 3 there if an unknown record is taken over.
-- Has no flags, so that it alone may be refused for memory, and only when it comes to write.
if state == 0 then
  -- It expired at this very moment; an absent one does not come by here (fresh.lua).
  if has_tombstone() then return { 'lost' } end
  become_granted(wish)
  save('')
  return { 'granted', 1, -1, 0 }
end
local resends = ARGV[3] ~= nil
local like = likeness()
if like > OTHER_POLICY then return refused(like) end
local ours = owner == token
local buried = (ours or resends) and state ~= COMPLETED and has_tombstone()
if ours and is_undecided() and not buried then
  -- The reply to the first of these was lost.
  local tail = prior()
  local abandon_after, lease = struct.unpack('>I8I8', wish, 73)
  state, reason, status, moment, expires_at = CLAIMED, 0, 0, now + lease, 0
  abandon_at = math.max(abandon_at, now + abandon_after)
  flags = flags % 4
  fields_size, body_size = 0, 0
  save(tail)
  return { 'granted', attempts, prior_size > 0 and flags % 2 or -1, 0 }
end
local lapsed = lapse()
if state ~= UNKNOWN or not resends or ours or buried then
  if lapsed then save_lapsed() end
  return found(like, lapsed)
end
-- Taken over. What was known stays inside, for the case that this attempt sends nothing; it never nests.
local response = ''
if fields_size + body_size > 0 then response = redis.call('GETRANGE', key, 116 + block_size + prior_size, -1) end
local quoted, tried, until_ = flags % 2, attempts, abandon_at
flags, prior_size = flags - (has_flag(2) and 2 or 0), 0
local inner = pack() .. block() .. response
become_granted(wish)
flags, attempts, abandon_at = quoted + 2, math.min(tried + 1, 4294967295), math.max(until_, abandon_at)
prior_size = #inner
save(inner)
return { 'granted', attempts, quoted, lapsed and 1 or 0 }
