-- The renewal of a claim that lives, before anything else is set up: of the record only the lease is written.
local version, encryption, state = head:byte(1, 3)
if version == 2 and encryption == 0 and state == 1 and #head == 116 and head:sub(9, 24) == ARGV[2]:sub(9, 24)
  and struct.unpack('>I8', head, 81) > now then
  local lease_until = now + struct.unpack('>I8', ARGV[2], 81)
  redis.call('SETRANGE', KEYS[1], 80, struct.pack('>I8', lease_until))
  redis.call('ZADD', KEYS[2], string.format('%d', 1e15 + lease_until), ARGV[1])
  return 'extended'
end
