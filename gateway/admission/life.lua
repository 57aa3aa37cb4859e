-- Names this server's data: a name that is another than before says that the
-- data was lost in between.
-- KEYS: where the name is. ARGV: the name, if there is none.
local name = redis.call('GET', KEYS[1])
if not name then
  name = ARGV[1]
  redis.call('SET', KEYS[1], name)
end
return name
