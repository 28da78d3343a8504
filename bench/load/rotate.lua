-- wrk script: sends the requests of a file in rotation and prints every latency it saw as one JSON line.
-- File format: 4-byte little-endian length + raw HTTP request, repeated. Arguments after `--`: the file.
local requests, at = {}, 0

local function le32(s, i)
  local a, b, c, d = s:byte(i, i + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local all, i = file:read("*a"), 1
  file:close()
  while i <= #all do
    local size = le32(all, i)
    requests[#requests + 1] = all:sub(i + 4, i + 3 + size)
    i = i + 4 + size
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  local out = {}
  for i = 1, #latency do
    local us, count = latency(i)
    out[#out + 1] = string.format("[%d,%d]", us, count)
  end
  io.write(string.format(
    '\nRAW {"requests":%d,"seconds":%.6f,"http_errors":%d,"socket_errors":%d,"latency_us":[%s]}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, table.concat(out, ",")))
end
