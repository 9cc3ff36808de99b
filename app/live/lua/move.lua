#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known, attempt, role, reason as JSON. Answers with the run, or with nothing if there
-- was nothing to do. 11 commands: HMGET ZSCORE TIME ZREM XADD HSET ZADD SADD, ZADD PUBLISH, HMGET.
local schema, attempt, role, reason = unpack(ARGV, 3)
local run = redis.call('HMGET', KEYS[1], $STATE)
if run.status ~= 'queued' or run.attempt ~= attempt or tonumber(run.schema) > tonumber(schema) then return false end
if run.targetRole == role then return false end
local since, now = redis.call('ZSCORE', ARGV[1] .. 'queued:' .. run.targetRole, ARGV[2]), now_ms()
redis.call('ZREM', ARGV[1] .. 'queued:' .. run.targetRole, ARGV[2])
log(run, now, rerouted(run, role, reason))
redis.call('HSET', KEYS[1], 'targetRole', role, 'seq', run.seq, 'rev', run.rev + 1)
enqueue(role, since)
tell(run, now)
return answer(redis.call('HMGET', KEYS[1], $FIELDS))
