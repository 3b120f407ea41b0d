-- What a duplicate with this `fingerprint` and these `details` is told of a record that is there.
local SAME, OTHER_POLICY, STRANGER, DIFFERS = 0, 1, 2, 3
-- In a block: the parts of the request, the header fields with credentials, and the cookies up to its end.
local PARTS, HEADERS = 80, 104

local function shares_a_cookie(first)
  local known = {}
  for at = HEADERS + 1, #first, 8 do known[first:sub(at, at + 7)] = true end
  for at = HEADERS + 1, #details, 8 do
    if known[details:sub(at, at + 7)] then return true end
  end
  return false
end

-- record/imprint.rs: admits.
local function admits(first)
  if #details <= PARTS then return true end
  if first:sub(PARTS + 1, HEADERS) ~= details:sub(PARTS + 1, HEADERS) then return false end
  return #first <= HEADERS or shares_a_cookie(first)
end

-- record/imprint.rs: compare. All up to OTHER_POLICY are the same request.
local function likeness()
  local first = block()
  if not admits(first) then return STRANGER end
  if print:sub(1, 4) == fingerprint:sub(1, 4) then return print == fingerprint and SAME or DIFFERS end
  local same = #first >= PARTS and #details >= PARTS and first:sub(1, PARTS) == details:sub(1, PARTS)
  return same and OTHER_POLICY or DIFFERS
end

-- What a request that is not the record's own is told: in what they differ, the caller of the script finds out.
local function refused(like)
  if like == STRANGER then return { 'stranger' } end
  local fate = (state == CLAIMED and moment <= now) and UNKNOWN or state
  return { 'reused', fate, has_flag(4) and status or -1, print, block() }
end

-- A small record comes whole, of a large one the head alone.
local function completed()
  local whole = fields_size + body_size <= INLINE_BODY
  return { 'completed', now, whole and redis.call('GET', key) or head, whole and 1 or 0 }
end

local function found(like, lapsed)
  if state == COMPLETED then return completed() end
  if state == CLAIMED then return { 'claimed', moment - now, like } end
  return { 'unknown', moment, reason, has_flag(4) and status or -1, like, lapsed and 1 or 0 }
end
