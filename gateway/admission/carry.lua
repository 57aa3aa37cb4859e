-- Adds to the rates of some nodes of one tenant what a replica admitted of which
-- this server knows nothing, once.
-- KEYS: where the number of what was last carried is, then the nodes' rates.
-- ARGV: the number, then for each node and each of its four meters by how much it
--       is further ahead (us), then how far it is ahead at least (us).
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local METERS = 4
if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', 3600000) -- long after all of it has flowed off
for i = 2, #KEYS do
  local arrivals, last = {}, now
  for arrival in string.gmatch(redis.call('GET', KEYS[i]) or '0,0,0,0', '%d+') do
    local m = #arrivals + 1
    local at = 1 + 2 * METERS * (i - 2) + m
    local more, least = tonumber(ARGV[at]), tonumber(ARGV[at + METERS])
    arrival = tonumber(arrival)
    if least > 0 then arrival = math.max(arrival, now + least) end
    if more > 0 then arrival = math.max(arrival, now) + more end
    arrivals[m] = arrival
    last = math.max(last, arrival)
  end
  redis.call('SET', KEYS[i], string.format('%.0f,%.0f,%.0f,%.0f', unpack(arrivals)), 'PX', string.format('%.0f', math.ceil((last - now) / 1000) + 1))
end
return #KEYS - 1
