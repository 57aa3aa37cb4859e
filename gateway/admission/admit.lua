-- Admits one request at all of its nodes or at none, in one step.
-- KEYS: for each node the key of its rates, then the key of its live set; last,
--       if the request has an intent, the key of the tenant's intents.
-- ARGV: request id, life of a slot (us), then for each node its slots (0: no
--       limit) and for each of its four meters what the request costs and what
--       may be spent at once (us); a burst of 0 is no limit. Last the intent,
--       if there is one.
-- Returns: the node that refused (from 1; 0: none), what refused (0 to 3 a
--       meter, 4 the slots), us to wait, then for each node how far each meter
--       is ahead (us).
-- The arrivals of a node's meters are one string: to read or write it is one call,
-- and calls are what a script costs. A live set is rid of the dead when it is
-- renewed, and here when their slots are wanted.
-- Whole microseconds stay below 2^53, so doubles hold them exactly.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local id, life = ARGV[1], tonumber(ARGV[2])
local SLOT_RETRY, METERS = 1000000, 4

local function text(n) return string.format('%.0f', n) end

local nodes, at = {}, 3
for i = 1, math.floor(#KEYS / 2) do
  local n = { rates = KEYS[2 * i - 1], live = KEYS[2 * i], slots = tonumber(ARGV[at]), cost = {}, burst = {}, arrival = {} }
  local limited = false
  for m = 1, METERS do
    n.cost[m], n.burst[m] = tonumber(ARGV[at + 2 * m - 1]), tonumber(ARGV[at + 2 * m])
    limited = limited or n.burst[m] > 0
  end
  at = at + 1 + 2 * METERS
  local expires = redis.call('ZSCORE', n.live, id)
  n.again = expires and tonumber(expires) > now
  local known = limited and redis.call('GET', n.rates) or '0,0,0,0'
  for arrival in string.gmatch(known, '%d+') do n.arrival[#n.arrival + 1] = tonumber(arrival) end
  nodes[i] = n
end

local worst, what, wait = 0, 0, 0
for i, n in ipairs(nodes) do
  if not n.again then
    for m = 1, METERS do
      if n.burst[m] > 0 and n.cost[m] > 0 and n.arrival[m] > now then
        local over = n.arrival[m] + n.cost[m] - now - n.burst[m]
        if over > wait then worst, what, wait = i, m - 1, over end
      end
    end
    if n.slots > 0 and SLOT_RETRY > wait and redis.call('ZCARD', n.live) >= n.slots then
      redis.call('ZREMRANGEBYSCORE', n.live, '-inf', text(now))
      if redis.call('ZCARD', n.live) >= n.slots then worst, what, wait = i, METERS, SLOT_RETRY end
    end
  end
end

if worst == 0 and #KEYS % 2 == 1 then
  redis.call('HSET', KEYS[#KEYS], id, ARGV[#ARGV])
  redis.call('EXPIRE', KEYS[#KEYS], 604800) -- a week: long after anybody swept them
end

local answer = {worst, what, wait}
for _, n in ipairs(nodes) do
  if worst == 0 and not n.again then
    redis.call('ZADD', n.live, text(now + life), id)
    redis.call('PEXPIRE', n.live, text(math.ceil(life / 1000)))
    local changed, last = false, now
    for m = 1, METERS do
      if n.burst[m] > 0 and n.cost[m] > 0 then
        n.arrival[m], changed = math.max(n.arrival[m], now) + n.cost[m], true
      end
      last = math.max(last, n.arrival[m])
    end
    if changed then
      redis.call('SET', n.rates, string.format('%.0f,%.0f,%.0f,%.0f', unpack(n.arrival)), 'PX', text(math.ceil((last - now) / 1000) + 1))
    end
  end
  for m = 1, METERS do answer[#answer + 1] = n.arrival[m] - now end
end
return answer
