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
    local changed = false
    for m = 1, METERS do
      local by = tonumber(ARGV[1 + METERS * (i - 1) + m])
      if by ~= 0 then
        local arrival = tonumber(redis.call('HGET', rates, m) or 0)
        if by > 0 then arrival = math.max(arrival, now) end
        redis.call('HSET', rates, m, string.format('%.0f', math.max(0, arrival + by)))
        changed = true
      end
    end
    if changed then
      local last = 0
      for _, arrival in ipairs(redis.call('HVALS', rates)) do last = math.max(last, tonumber(arrival)) end
      redis.call('PEXPIRE', rates, string.format('%.0f', math.max(1, math.ceil((last - now) / 1000))))
    end
  end
end
return 1
