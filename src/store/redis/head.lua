-- The head of the record, empty if there is none. The body is never read here: it may be large.
local head = redis.call('GETRANGE', KEYS[1], 0, 115)
