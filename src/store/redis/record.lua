-- Takes the head of the record apart, and holds what the operations share. The layout is that of codec.rs.
-- KEYS: record, index of open records, tombstone of the token.  ARGV: 1 member of the index, then what each script says.
local CLAIMED, UNKNOWN, COMPLETED = 1, 2, 3
local HEAD = '>BBBBBBHc16c36I4I8I8I8I8I8I4I4I4'
-- In the index the unknown come first, by age; the claimed after them, by the end of their lease.
local CLAIMS_FROM = 1e15

local key, open, tombstone, member = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

-- Lua would write large numbers as 1.7e+12.
local function digits(number) return string.format('%d', number) end

local version, encryption, units
local state, flags, reason, status, owner, print, attempts, claimed_at, abandon_at, moment, expires_at, keep_unknown
local prior_size, fields_size, body_size
-- The block of the imprint: how long it is, and itself once it is needed.
local block_size, known_block = 0, nil
if head == '' then
  state = 0
else
  if #head == 116 then
    version, encryption, state, flags, reason, units, status, owner, print, attempts, claimed_at, abandon_at,
      moment, expires_at, keep_unknown, prior_size, fields_size, body_size = struct.unpack(HEAD, head)
    block_size = 8 * units
  end
  -- Version 1 had no block.
  if (version ~= 2 and (version ~= 1 or block_size > 0)) or encryption ~= 0 or state < CLAIMED or state > COMPLETED then
    return redis.error_reply('UNREADABLE the record is damaged, encrypted or written by a newer version')
  end
  if expires_at > 0 and expires_at <= now then state = 0 end
end

local function block()
  if not known_block then
    known_block = block_size > 0 and redis.call('GETRANGE', key, 116, 115 + block_size) or ''
  end
  return known_block
end

local function pack()
  return struct.pack(HEAD, 2, 0, state, flags, reason, block_size / 8, status, owner, print, attempts, claimed_at, abandon_at,
    moment, expires_at, keep_unknown, prior_size, fields_size, body_size)
end

local function prior()
  if prior_size == 0 then return '' end
  return redis.call('GETRANGE', key, 116 + block_size, 115 + block_size + prior_size)
end

-- Writes the record. Always a SET first: on a full server that is the command which may be refused, and a script
-- must be refused before it changed anything.
local function save(tail)
  local value = pack() .. block() .. tail
  if expires_at > 0 then
    redis.call('SET', key, value, 'PXAT', digits(expires_at))
  else
    redis.call('SET', key, value)
  end
  if state == CLAIMED then
    redis.call('ZADD', open, digits(CLAIMS_FROM + moment), member)
  elseif state == UNKNOWN then
    redis.call('ZADD', open, digits(moment), member)
  else
    redis.call('ZREM', open, member)
  end
end

local function publish() redis.call('PUBLISH', key, '') end

-- Keeps what is there beyond the head (a prior record, a response): none of it changes by lapsing.
local function save_lapsed()
  save(prior())
  publish()
end

local function has_tombstone() return redis.call('EXISTS', tombstone) == 1 end

-- Stops the token from being granted again: for a while, and for at least this span.
local function bury(span) redis.call('SET', tombstone, '', 'PX', digits(math.max(TOMBSTONE_TTL, span))) end

local function has_flag(flag) return flags % (flag * 2) >= flag end

-- An attempt may hand its grant back while it is claimed, or unknown for no other reason than its lease.
local function is_undecided() return state == CLAIMED or (state == UNKNOWN and reason == 1) end

local function become_unknown(since, why)
  state, reason, status, moment, expires_at = UNKNOWN, why, 0, since, 0
  -- An attempt that may still be running is never forgotten, whatever its age. All but a lapse are said by the attempt
  -- itself, at its end.
  if keep_unknown > 0 then expires_at = math.max(since + keep_unknown, why == 1 and abandon_at or since) end
end

-- Turns a claim whose lease is over into unknown, and says whether it did. Nothing is written yet.
local function lapse()
  if state ~= CLAIMED or moment > now then return false end
  become_unknown(moment, 1)
  return true
end

-- Puts in what an attempt wishes, without the response that may be in it.
local function become_granted(wish)
  version, encryption, state, flags, reason, units, status, owner, print, attempts, claimed_at, abandon_at,
    moment, expires_at, keep_unknown, prior_size, fields_size, body_size = struct.unpack(HEAD, wish)
  block_size = 8 * units
  known_block = wish:sub(117, 116 + block_size)
  claimed_at, abandon_at, moment = now, now + abandon_at, now + moment
  state, flags, reason, status, expires_at, fields_size, body_size = CLAIMED, flags % 2, 0, 0, 0, 0, 0
end

-- Puts in the response that another record holds, and returns its bytes. It ends a prior record.
local function take_response(other)
  local kind = other:byte(4)
  status = struct.unpack('>H', other, 7)
  prior_size, fields_size, body_size = 0, struct.unpack('>I4I4', other, 109)
  flags = flags % 2 + kind - kind % 4
  return other:sub(117 + 8 * other:byte(6))
end

-- Completes it as another record is, whose moments are spans.
local function become_completed(other)
  state, reason, moment, expires_at = COMPLETED, 0, now, now + struct.unpack('>I8', other, 89)
end
