#!lua
-- ARGV: prefix, id, role, attempt, end of the pause in ms, event, then the names and values of the hash.
-- 7 commands: EXISTS TIME HSET XADD ZADD, ZADD PUBLISH. Refused when memory is full.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local now, run = now_ms(), {}
run.seq, run.attempt = 0, ARGV[4]
redis.call('HSET', KEYS[1], 'createdMs', now, unpack(ARGV, 7))
log(run, now, ARGV[6])
redis.call('ZADD', ARGV[1] .. 'queued:' .. ARGV[3], math.max(now, tonumber(ARGV[5])), ARGV[2])
tell(run, now)
return 1
