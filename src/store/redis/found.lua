-- What a duplicate with this `fingerprint` is told of a record that is there.
local function conflicts() return print:sub(1, 4) == fingerprint:sub(1, 4) and print ~= fingerprint end

local function other_policy() return print:sub(1, 4) ~= fingerprint:sub(1, 4) and 1 or 0 end

-- A small record comes whole, of a large one the head alone.
local function completed()
  local whole = fields_size + body_size <= INLINE_BODY
  return { 'completed', now, whole and redis.call('GET', key) or head, whole and 1 or 0 }
end

local function found(lapsed)
  if state == COMPLETED then return completed() end
  if state == CLAIMED then return { 'claimed', moment - now, other_policy() } end
  return { 'unknown', moment, reason, has_flag(4) and status or -1, other_policy(), lapsed and 1 or 0 }
end
