-- The completion of a claim that is still the attempt's own, as it was granted: nearly all are such, and as in fresh.lua
-- nothing else is set up for it. The wish is written as it came, since it is as long as the body; then what only the
-- store knows is put into its head: the attempts and moments of the claim, and the moments of the end.
local wish = ARGV[2]
local version, encryption, state, flags = head:byte(1, 4)
if version == 2 and encryption == 0 and state == 1 and flags == wish:byte(4) % 2 and #head == 116
  and head:byte(6) == wish:byte(6) and head:sub(9, 60) == wish:sub(9, 60) then
  local expires_at = now + struct.unpack('>I8', wish, 89)
  redis.call('SET', KEYS[1], wish, 'PXAT', string.format('%d', expires_at))
  redis.call('SETRANGE', KEYS[1], 60, head:sub(61, 80) .. struct.pack('>I8I8', now, expires_at) .. head:sub(97, 104))
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('PUBLISH', KEYS[1], '')
  return 'stored'
end
