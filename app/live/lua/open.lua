#!lua flags=no-writes,allow-oom
-- ARGV: prefix. The ids of all open runs. 2 commands and one a role: ZRANGE SMEMBERS ZRANGE...
local open = redis.call('ZRANGE', ARGV[1] .. 'leases', 0, -1)
for _, role in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'waiting')) do
  for _, id in ipairs(redis.call('ZRANGE', ARGV[1] .. 'queued:' .. role, 0, -1)) do open[#open + 1] = id end
end
return open
