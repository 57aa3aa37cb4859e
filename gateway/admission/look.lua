-- Tells how nodes stand, and changes nothing.
-- KEYS: for each node the key of its rates, then the key of its live set.
-- Returns: for each node how far each of its four meters is ahead (us), then how
--       many requests are live.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local answer = {}
for i = 1, #KEYS / 2 do
  for arrival in string.gmatch(redis.call('GET', KEYS[2 * i - 1]) or '0,0,0,0', '%d+') do answer[#answer + 1] = tonumber(arrival) - now end
  answer[#answer + 1] = redis.call('ZCOUNT', KEYS[2 * i], string.format('(%.0f', now), '+inf')
end
return answer
