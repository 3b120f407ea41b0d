-- The server's clock, in milliseconds since the epoch. A file of its own, so that a test can put another in its place.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
