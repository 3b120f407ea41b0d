-- The completion of a claim that is still the attempt's own, before anything else is set up: nearly all are such, and as
-- in fresh.lua most of what a script costs are its own functions. The layout is that of codec.rs; token to abandon_at
-- and unknown_retention stay as they are, a prior record ends.
local version, encryption, state, flags = struct.unpack('BBBB', #head == 116 and head or '\0\0\0\0')
if version == 1 and encryption == 0 and state == 1 and head:sub(9, 24) == ARGV[2] then
  local expires_at = now + ARGV[8]
  redis.call('SET', KEYS[1], struct.pack('>BBBBBBH', 1, 0, 3, flags % 2 + ARGV[12], 0, 0, ARGV[9]) .. head:sub(9, 80)
    .. struct.pack('>I8I8', now, expires_at) .. head:sub(97, 104) .. struct.pack('>I4I4I4', 0, #ARGV[10], #ARGV[11])
    .. ARGV[10] .. ARGV[11], 'PXAT', string.format('%.0f', expires_at))
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('PUBLISH', KEYS[1], '')
  return redis.status_reply('stored')
end
