#!lua flags=no-writes,allow-oom
-- An append without events: whether the lease still holds. ARGV: prefix, id, token. 1 command: HMGET.
local run = redis.call('HMGET', KEYS[1], $STATE)
if not holds(run, ARGV[3]) then return refused() end
return granted(run)
