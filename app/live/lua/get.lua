#!lua flags=no-writes,allow-oom
-- ARGV: prefix, id. Answers with the run or nothing. 1 command: HMGET.
local run = redis.call('HMGET', KEYS[1], $FIELDS)
return run.status and answer(run)
