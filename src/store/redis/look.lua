-- record.rs: look. ARGV: 1 member, 2 nothing, 3 fingerprint, 4 the largest body that comes along.
if state == 0 then return { 'absent' } end
if conflicts() then return { 'reused' } end
local lapsed = lapse()
if lapsed then save_lapsed() end
return found(ARGV[4], lapsed)
