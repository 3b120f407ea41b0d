-- record.rs: release. Whatever is found, this token is never granted again.
local abandon_after = struct.unpack('>I8', wish, 73)
bury(math.max(abandon_after, (state ~= 0 and owner == token) and abandon_at - now or 0))
if state == 0 or owner ~= token or not is_undecided() then return { 'lost' } end
if prior_size > 0 then
  local inner = prior()
  local since, expiry = struct.unpack('>I8I8', inner, 81)
  if expiry > 0 then redis.call('SET', key, inner, 'PXAT', digits(expiry)) else redis.call('SET', key, inner) end
  redis.call('ZADD', open, digits(since), member)
  publish()
  return { 'unknown' }
end
if attempts > 1 then
  -- An earlier attempt's fate is not known, and what was known of it is no longer here.
  if state == CLAIMED then
    become_unknown(now, 1)
    save('')
    publish()
  end
  return { 'unknown' }
end
redis.call('DEL', key)
redis.call('ZREM', open, member)
publish()
return { 'absent' }
