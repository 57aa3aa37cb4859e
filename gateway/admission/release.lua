-- Ends one request at its nodes and corrects what it was charged, once.
-- KEYS: for each node the key of its rates, then the key of its live set; last,
--       if the request has an intent, the key of the tenant's intents.
-- ARGV: request id, then for each node by how much each of its four meters
--       changes (us).
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local METERS = 4
if #KEYS % 2 == 1 then redis.call('HDEL', KEYS[#KEYS], ARGV[1], ARGV[1] .. '+') end
for i = 1, math.floor(#KEYS / 2) do
  local rates, live = KEYS[2 * i - 1], KEYS[2 * i]
  if redis.call('ZREM', live, ARGV[1]) == 1 then
    local by, changed = {}, false
    for m = 1, METERS do
      by[m] = tonumber(ARGV[1 + METERS * (i - 1) + m])
      changed = changed or by[m] ~= 0
    end
    if changed then
      local arrivals, last = {}, now
      for arrival in string.gmatch(redis.call('GET', rates) or '0,0,0,0', '%d+') do
        local m = #arrivals + 1
        arrival = tonumber(arrival)
        if by[m] > 0 then arrival = math.max(arrival, now) end
        arrivals[m] = math.max(0, arrival + by[m])
        last = math.max(last, arrivals[m])
      end
      redis.call('SET', rates, string.format('%.0f,%.0f,%.0f,%.0f', unpack(arrivals)), 'PX', string.format('%.0f', math.ceil((last - now) / 1000) + 1))
    end
  end
end
return 1
