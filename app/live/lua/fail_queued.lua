#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known, attempt, error as JSON. Answers with the run, or with nothing if it does not
-- wait. 9 commands: HMGET TIME XADD ZREM HSET ZADD, ZADD PUBLISH, HMGET; 1 more if it expires.
local schema, attempt, fault = unpack(ARGV, 3)
local run = redis.call('HMGET', KEYS[1], $STATE)
if run.status ~= 'queued' or run.attempt ~= attempt or tonumber(run.schema) > tonumber(schema) then return false end
finish(run, now_ms(), 'failed', '{"type":"run.failed","data":{"error":' .. fault .. '}}', 'error', fault)
return answer(redis.call('HMGET', KEYS[1], $FIELDS))
