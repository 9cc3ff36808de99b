#!lua
-- ARGV: prefix, id, role, attempt, end of the pause in ms, ms of its acceptance (empty: now), when it expires in ms (or
-- empty), event, then the names and values of the hash.
-- 8 commands: EXISTS TIME HSET XADD ZADD SADD, ZADD PUBLISH, and a ZADD if it expires. Refused when memory is full.
local role, attempt, pause, created, expires, event = unpack(ARGV, 3, 8)
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local now, run = now_ms(), {}
run.seq, run.attempt = 0, attempt
redis.call('HSET', KEYS[1], 'createdMs', created ~= '' and created or now, unpack(ARGV, 9))
log(run, now, event)
enqueue(role, math.max(now, tonumber(pause)))
if expires ~= '' then redis.call('ZADD', ARGV[1] .. 'expiring', expires, ARGV[2]) end
tell(run, now)
return 1
