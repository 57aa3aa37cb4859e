-- Notes how far requests have come whose intents are kept.
-- KEYS: one tenant's intents. ARGV: request id and progress, in turn.
for i = 1, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then redis.call('HSET', KEYS[1], ARGV[i] .. '+', ARGV[i + 1]) end
end
return 1
