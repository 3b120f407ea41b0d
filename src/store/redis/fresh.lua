-- The two claims that most are, before anything else is set up: of a key that nobody has claimed, and of one that is done
-- and whose request was the same in every byte of its imprint.
-- What a script costs the server is mostly its own functions, and its strings, which Lua hashes byte by byte: this way
-- neither makes a function, and no body is turned into a second string.
local key, wish = KEYS[1], ARGV[2]
if redis.call('EXISTS', key, KEYS[3]) == 0 then
  local abandon_after, lease = struct.unpack('>I8I8', wish, 73)
  local lease_until = now + lease
  redis.call('SET', key,
    wish:sub(1, 64) .. struct.pack('>I8I8I8', now, now + abandon_after, lease_until) .. wish:sub(89))
  redis.call('ZADD', KEYS[2], string.format('%d', 1e15 + lease_until), ARGV[1])
  return 'fresh'
end
local head = redis.call('GETRANGE', key, 0, SMALL - 1)
if head == '' then
  if redis.call('EXISTS', key) == 1 then return redis.error_reply('UNREADABLE the record is empty') end
  return { 'lost' }
end
if #head < SMALL then
  local version, encryption, state = head:byte(1, 3)
  if version == 2 and encryption == 0 and state == 3 and #head >= #wish and struct.unpack('>I8', head, 89) > now
    and head:byte(6) == wish:byte(6) and head:sub(25, 60) == wish:sub(25, 60) and head:sub(117, #wish) == wish:sub(117) then
    return { 'completed', now, head, 1 }
  end
end
head = head:sub(1, 116)
