#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known, 'requested' or 'force'. A queued run: 8 commands, HMGET TIME XADD ZREM HSET
-- ZADD, ZADD PUBLISH. A running one: HMGET HSET TIME ZADD.
local run = redis.call('HMGET', KEYS[1], $STATE)
if not run.status then return 'missing' end
if tonumber(run.schema) > tonumber(ARGV[3]) then return 'newer_schema' end
if run.status ~= 'queued' and run.status ~= 'running' then return 'ended' end
local before = run.cancel
if before ~= 'force' then run.cancel = ARGV[4] end
if run.status == 'queued' then
  finish(run, now_ms(), 'cancelled', '{"type":"run.cancelled"}')
  return 'cancelled'
end
if before == '' then
  redis.call('HSET', KEYS[1], 'cancel', run.cancel, 'rev', run.rev + 1)
  redis.call('ZADD', ARGV[1] .. 'changed', 'NX', now_ms(), ARGV[2])
elseif before ~= run.cancel then
  redis.call('HSET', KEYS[1], 'cancel', run.cancel)
end
return 'requested'
