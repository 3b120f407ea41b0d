-- record.rs: look. ARGV: 1 member, 2 the fingerprint and the block of the imprint that asks.
if state == 0 then return { 'absent' } end
local like = likeness()
if like > OTHER_POLICY then return refused(like) end
local lapsed = lapse()
if lapsed then save_lapsed() end
return found(like, lapsed)
