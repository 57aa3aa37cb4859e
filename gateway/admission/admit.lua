-- Admits one request at all of its nodes or at none, in one step.
-- KEYS: for each node the key of its rate, then the key of its live set.
-- ARGV: request id, life of a slot (us), then for each node the interval and
--       the burst of its rate (us) and its number of slots; 0 is no limit.
-- Returns: the binding node (from 1; 0: none), what refused (0 nothing, 1 the
--       rate, 2 the slots), requests left, us to the whole allowance, us to wait.
-- Whole microseconds stay below 2^53, so doubles hold them exactly.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local id, life = ARGV[1], tonumber(ARGV[2])
local SLOT_RETRY = 1000000

local function text(n) return string.format('%.0f', n) end

local nodes = {}
for i = 1, #KEYS / 2 do
  local n = {
    rate = KEYS[2 * i - 1], live = KEYS[2 * i],
    interval = tonumber(ARGV[3 * i]), burst = tonumber(ARGV[3 * i + 1]), slots = tonumber(ARGV[3 * i + 2]),
    arrival = 0,
  }
  redis.call('ZREMRANGEBYSCORE', n.live, '-inf', text(now))
  n.again = redis.call('ZSCORE', n.live, id)
  if n.interval > 0 then
    n.arrival = tonumber(redis.call('GET', n.rate) or 0)
  end
  nodes[i] = n
end

local function left(n)
  return math.floor(math.max(0, n.burst - math.max(0, n.arrival - now)) / n.interval)
end

local function answer(index, what, wait)
  local n = nodes[index]
  if not n or n.interval == 0 then return {index, what, 0, 0, wait} end
  return {index, what, left(n), math.max(0, n.arrival - now), wait}
end

local worst, what, wait = 0, 0, 0
for i, n in ipairs(nodes) do
  if not n.again then
    if n.interval > 0 then
      local over = math.max(n.arrival, now) + n.interval - now - n.burst
      if over > wait then worst, what, wait = i, 1, over end
    end
    if n.slots > 0 and SLOT_RETRY > wait and redis.call('ZCARD', n.live) >= n.slots then
      worst, what, wait = i, 2, SLOT_RETRY
    end
  end
end
if worst > 0 then return answer(worst, what, wait) end

local tightest = 0
for i, n in ipairs(nodes) do
  if not n.again then
    redis.call('ZADD', n.live, text(now + life), id)
    redis.call('PEXPIRE', n.live, text(math.ceil(life / 1000)))
    if n.interval > 0 then
      n.arrival = math.max(n.arrival, now) + n.interval
      redis.call('SET', n.rate, text(n.arrival), 'PX', text(math.ceil((n.arrival - now) / 1000)))
    end
  end
  if n.interval > 0 and (tightest == 0 or left(n) < left(nodes[tightest])) then tightest = i end
end
return answer(tightest, 0, 0)
