-- The claim of a key that nobody has claimed, before anything else is set up: most claims are such. What a script costs
-- the server is mostly its own functions; this way a first execution makes none.
if head == '' then
  if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 then
    if redis.call('EXISTS', KEYS[1]) == 1 then return redis.error_reply('UNREADABLE the record is empty') end
    return { 'lost' }
  end
  local lease_until = now + ARGV[5]
  redis.call('SET', KEYS[1], struct.pack('>BBBBBBHc16c36I4I8I8I8I8I8I4I4I4', 1, 0, 1, ARGV[4], 0, 0, 0, ARGV[2], ARGV[3],
    1, now, now + ARGV[6], lease_until, 0, ARGV[7], 0, 0, 0))
  redis.call('ZADD', KEYS[2], string.format('%.0f', 1e15 + lease_until), ARGV[1])
  return redis.status_reply('fresh')
end
