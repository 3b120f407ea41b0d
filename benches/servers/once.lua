-- The competitor: a claim, a forward and a record as one would write them by hand in nginx with Lua and Redis.
-- One SET NX for the claim, one SET for the record; a duplicate gets the record, or 409 while there is none. It promises
-- much less than onceproxy does (no fingerprint, no renewal, no doubt, no wait), so it bounds what such a thing costs.
local once = {}

local LEASE, RETENTION = 10000, 86400000

local function ask(socket, ...)
  local parts = { ... }
  local command = { "*", #parts, "\r\n" }
  for _, part in ipairs(parts) do
    part = tostring(part)
    command[#command + 1] = "$" .. #part .. "\r\n" .. part .. "\r\n"
  end
  local sent, failure = socket:send(table.concat(command))
  if not sent then return nil, failure end
  local line
  line, failure = socket:receive()
  if not line then return nil, failure end
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "-" then return nil, rest end
  if kind ~= "$" then return rest end
  local length = tonumber(rest)
  if length < 0 then return false end
  local value
  value, failure = socket:receive(length + 2)
  return value and value:sub(1, length), failure
end

local function connect(port)
  local socket = ngx.socket.tcp()
  assert(socket:connect("127.0.0.1", port))
  return socket
end

local function answer(status, kind, body)
  ngx.status = status
  ngx.header["Content-Type"] = kind
  ngx.header["Content-Length"] = #body
  ngx.print(body)
end

-- The record: status, content type and body, lengths first.
local function pack(response)
  local kind = response.header["Content-Type"] or ""
  return string.format("%d %d ", response.status, #kind) .. kind .. response.body
end

local function replay(record)
  local status, length, at = record:match("^(%d+) (%d+) ()")
  ngx.header["Idempotent-Replayed"] = "true"
  answer(tonumber(status), record:sub(at, at + length - 1), record:sub(at + length))
end

-- SET NX GET answers what is there, or nothing when the claim was granted.
function once.serve(redis_port)
  local key = ngx.var.http_idempotency_key
  ngx.req.read_body()
  if not key then return ngx.exec("@upstream") end
  key = "lua:" .. ngx.md5(key)
  local redis = connect(redis_port)
  local found, failure = ask(redis, "SET", key, "", "NX", "GET", "PX", LEASE)
  if found == nil then error("Redis: " .. failure) end
  if found == "" then
    redis:setkeepalive(60000, 256)
    return answer(409, "text/plain", "running\n")
  end
  if found then
    redis:setkeepalive(60000, 256)
    return replay(found)
  end
  local response = ngx.location.capture("/once-upstream", { method = ngx.HTTP_POST })
  assert(ask(redis, "SET", key, pack(response), "PX", RETENTION))
  redis:setkeepalive(60000, 256)
  answer(response.status, response.header["Content-Type"], response.body)
end

return once
