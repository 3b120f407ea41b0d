-- What an attempt asks for. ARGV: 1 member of the index, 2 the record that it wishes to be there, as it would be had all
-- begun at the first moment of the clock: its moments are spans, to which `now` is added.
local wish = ARGV[2]
local token, fingerprint, details = wish:sub(9, 24), wish:sub(25, 60), wish:sub(117, 116 + 8 * wish:byte(6))
