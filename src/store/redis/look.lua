-- record.rs: look. ARGV: 1 member, 2 fingerprint.
if state == 0 then return { 'absent' } end
if conflicts() then return { 'reused' } end
local lapsed = lapse()
if lapsed then save_lapsed() end
return found(lapsed)
