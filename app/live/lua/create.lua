#!lua
-- ARGV: prefix, id, ms after which this is too late, role, attempt, epoch, end of the pause in ms, ms of its acceptance
-- (empty: now), when it expires in ms (or empty), event, then the names and values of the hash. Answers with 1, 0 if
-- there is such a run, -1 if it is too late; and with the server's time in ms.
-- 8 commands: TIME EXISTS HSET XADD ZADD SADD, ZADD PUBLISH, and a ZADD if it expires. Refused when memory is full.
local latest, role, attempt, epoch, pause, created, expires, event = unpack(ARGV, 3, 10)
local now, run = now_ms(), {}
if now > tonumber(latest) then return {-1, now} end
if redis.call('EXISTS', KEYS[1]) == 1 then return {0, now} end
run.seq, run.attempt, run.epoch = 0, attempt, epoch
redis.call('HSET', KEYS[1], 'createdMs', created ~= '' and created or now, unpack(ARGV, 11))
log(run, now, event)
enqueue(role, math.max(now, tonumber(pause)))
if expires ~= '' then redis.call('ZADD', ARGV[1] .. 'expiring', expires, ARGV[2]) end
tell(run, now)
return {1, now}
