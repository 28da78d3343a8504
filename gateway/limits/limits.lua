-- Units: µs of this server's clock; rates per µs; amounts are whole requests, tokens or rows.
-- KEYS: per limit two, its level ("<level> <at>") and its leases (a sorted set of "<amount>:<lease>" by expiry).
-- ARGV: msgpack of {lease µs, limits: {kind, rate, capacity}..., operations}, see redis_store.py.
-- Answers msgpack: per admission {1 or 0, {level, wait}...}. bucket.py explains the arithmetic.
local asked = cmsgpack.unpack(ARGV[1])
local lease_us, limits, operations = asked[1], asked[2], asked[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local RATE, HELD = 0, 2
local NEVER, UNKNOWN = -1, -2
local EPSILON = 1e-6
local ADMIT, LOOK, SETTLE = 0, 1, 2
local buckets = {}

local function amount_of(member)
  return tonumber(string.match(member, '^(%d+):'))
end

local function bucket(i)
  local b = buckets[i]
  if b then return b end
  local limit = limits[i]
  b = {kind = limit[1], rate = limit[2], capacity = limit[3], level_key = KEYS[2 * i - 1], leases_key = KEYS[2 * i], level = 0}
  local raw = redis.call('GET', b.level_key)
  if raw then
    local level, at = string.match(raw, '^(%S+) (%S+)$')
    b.level = tonumber(level)
    if now > tonumber(at) then b.level = math.max(0, b.level - (now - tonumber(at)) * b.rate) end
  end
  if b.kind ~= RATE then
    local expired = redis.call('ZRANGEBYSCORE', b.leases_key, '-inf', now)
    for _, member in ipairs(expired) do b.level = math.max(0, b.level - amount_of(member)) end
    if #expired > 0 then redis.call('ZREMRANGEBYSCORE', b.leases_key, '-inf', now) end
  end
  buckets[i] = b
  return b
end

local function wait_us(b, amount)
  if amount > b.capacity then return NEVER end
  local over = b.level + amount - b.capacity
  if over <= EPSILON then return 0 end
  if b.kind == HELD then return UNKNOWN end
  return math.ceil((over - EPSILON / 2) / b.rate)
end

local function hold(b, amount, lease)
  return redis.call('ZADD', b.leases_key, now + lease_us, string.format('%.0f:%s', amount, lease))
end

local answers = {}
for _, operation in ipairs(operations) do
  local what, lease, demands = operation[1], operation[2], operation[3]
  if what == ADMIT or what == LOOK then
    local fits, waits = true, {}
    for n, demand in ipairs(demands) do
      waits[n] = wait_us(bucket(demand[1]), demand[2])
      if waits[n] ~= 0 then fits = false end
    end
    local answer = {fits and 1 or 0}
    for n, demand in ipairs(demands) do
      local b = bucket(demand[1])
      if fits and what == ADMIT then
        b.level = b.level + demand[2]
        if b.kind ~= RATE and demand[2] > 0 then hold(b, demand[2], lease) end
      end
      answer[n + 1] = {b.level, waits[n]}
    end
    answers[#answers + 1] = answer
  else
    for _, demand in ipairs(demands) do
      local b, taken, used = bucket(demand[1]), demand[2], demand[3]
      if what == SETTLE then
        local change = 0
        if b.kind == RATE or redis.call('ZREM', b.leases_key, string.format('%.0f:%s', taken, lease)) == 1 then change = -taken end
        if b.kind ~= HELD then change = change + used end
        b.level = math.max(0, b.level + change)
      elseif b.kind ~= RATE and taken > 0 and hold(b, taken, lease) == 1 then
        b.level = b.level + taken
      end
    end
  end
end

for _, b in pairs(buckets) do
  local ttl = 1000
  if b.kind ~= RATE then
    ttl = ttl + math.ceil(lease_us / 1000)
    redis.call('PEXPIRE', b.leases_key, ttl)
  end
  if b.kind ~= HELD then ttl = math.max(ttl, 1000 + math.ceil(b.level / b.rate / 1000)) end
  if b.level > 0 then
    redis.call('SET', b.level_key, string.format('%.17g %.0f', b.level, now), 'PX', ttl)
  else
    redis.call('DEL', b.level_key)
  end
end
return cmsgpack.pack(answers)
