#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known. 4 commands if queued, 5 if running: HMGET ZREM... DEL ZREM.
local run = redis.call('HMGET', KEYS[1], $STATE)
if run.status ~= 'queued' and run.status ~= 'running' or tonumber(run.schema) > tonumber(ARGV[3]) then return end
leave(run)
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', ARGV[1] .. 'changed', ARGV[2])
