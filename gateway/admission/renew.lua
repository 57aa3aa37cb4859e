-- Renews the slots of live requests, adds those that Redis has lost, and removes
-- the dead.
-- KEYS: one node's live set. ARGV: life of a slot (us), then request ids.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local life = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + life), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(life / 1000)))
return #ARGV - 1
