-- Whether this process sweeps: one at a time, by a key with a lease. KEYS: 1 the key.  ARGV: 1 who asks, 2 lease.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return { 0, now } end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { 1, now }
