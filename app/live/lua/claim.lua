#!lua
-- ARGV: prefix, id, newest schema known, role, instance as an entry of `excluded`, token, lease in ms, worker, event.
-- Answers with the run, or with '-' and why not.
-- 9 commands: HMGET TIME XADD ZREM HSET ZADD SADD, ZADD PUBLISH. Refused when memory is full.
local schema, role, instance, token, ttl, worker, event = unpack(ARGV, 3)
local run = redis.call('HMGET', KEYS[1], $FIELDS)
if not run.status then return '-missing' end
if run.status == 'running' and holds(run, token) then return answer(run) end
if tonumber(run.schema) > tonumber(schema) then return '-newer_schema' end
if run.status == 'running' then return '-taken' end
if run.status ~= 'queued' then return '-ended' end
if run.targetRole ~= role then return '-other_role' end
if run.excluded:find(instance, 1, true) then return '-excluded' end
local now = now_ms()
if tonumber(run.notBeforeMs) > now then return '-too_early' end
if run.startedMs == '' and run.expiresMs ~= '' and tonumber(run.expiresMs) <= now then return '-expired' end

log(run, now, event)
leave(run)
run.status, run.worker, run.waitingFor, run.rev = 'running', worker, '', run.rev + 1
if run.startedMs == '' then run.startedMs = now end
redis.call('HSET', KEYS[1], 'status', 'running', 'worker', worker, 'waitingFor', '', 'rev', run.rev, 'seq', run.seq,
  'startedMs', run.startedMs, 'token', token, 'instance', instance, 'batch', 0)
redis.call('ZADD', ARGV[1] .. 'leases', now + ttl, ARGV[2])
redis.call('SADD', ARGV[1] .. 'running:' .. role, ARGV[2])
tell(run, now)
return answer(run)
