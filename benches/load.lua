-- What wrk sends: a POST of 512 bytes of JSON, and how it tells what it saw.
-- Arguments: the kind of keys (none, same, known, unique; shared: of each 32 requests in a row, by as many connections,
-- one key), and a word that no other run uses.
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local keys, word = args[1], args[2]
  local body = '{"amount":1099,"currency":"eur","note":"' .. string.rep("n", 512 - 42) .. '"}'
  wrk.method, wrk.body = "POST", body
  wrk.headers["Content-Type"] = "application/json"
  if keys == "same" then wrk.headers["Idempotency-Key"] = word end
  local whole = wrk.format()
  if keys == "known" or keys == "unique" or keys == "shared" then
    -- Formatted once, with the key put in each time: wrk's own formatting would cost more than some of the proxies.
    wrk.headers["Idempotency-Key"] = "@"
    local before, after = wrk.format():match("^(.-Idempotency%-Key: )@(.*)$")
    local prefix, count = before .. word .. "-" .. number .. "-", 0
    local last = keys == "known" and 1000 or math.huge
    request = function()
      count = count < last and count + 1 or 1
      return prefix .. (keys == "shared" and math.floor(count / 32) or count) .. after
    end
  else
    request = function() return whole end
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\nRESULT {"requests": %d, "seconds": %.6f, "failed": %d, "statuses": %d, "p50": %.1f, "p99": %.1f}\n',
    summary.requests, summary.duration / 1e6, errors.connect + errors.read + errors.write + errors.timeout,
    errors.status, latency:percentile(50), latency:percentile(99)))
end
