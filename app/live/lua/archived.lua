#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known, ms to keep it. 5 commands: HMGET ZREM ZREM PEXPIRE PEXPIRE.
local run = redis.call('HMGET', KEYS[1], $STATE)
if not run.status or run.status == 'queued' or run.status == 'running' then return end
if tonumber(run.schema) > tonumber(ARGV[3]) then return end
redis.call('ZREM', ARGV[1] .. 'ended', ARGV[2])
redis.call('ZREM', ARGV[1] .. 'changed', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
