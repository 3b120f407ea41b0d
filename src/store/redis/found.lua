-- What a duplicate is told of a record that is there.
local function conflicts() return head:sub(25, 28) == ARGV[3]:sub(1, 4) and head:sub(29, 60) ~= ARGV[3]:sub(5) end

local function other_policy() return head:sub(25, 28) ~= ARGV[3]:sub(1, 4) and 1 or 0 end

-- A small record comes whole, of a large one the head alone.
local function completed(largest)
  local whole = fields_size + body_size <= tonumber(largest)
  return { 'completed', now, whole and redis.call('GET', key) or head, whole and 1 or 0 }
end

local function found(largest, lapsed)
  if state == COMPLETED then return completed(largest) end
  if state == CLAIMED then return { 'claimed', moment - now, other_policy() } end
  return { 'unknown', moment, reason, has_flag(4) and status or -1, other_policy(), lapsed and 1 or 0 }
end
