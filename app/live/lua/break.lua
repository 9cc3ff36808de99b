#!lua flags=allow-oom
-- ARGV: prefix, id, newest schema known, attempt, token (empty: the lease must have expired), losses allowed, role
-- (empty: the same), reason as JSON, pause in ms, the error `worker_lost` as JSON. Answers with the run, or with
-- nothing if there was nothing to do. 12 commands: HMGET TIME ZSCORE ZREM SREM XADD HSET ZADD SADD,
-- ZADD PUBLISH, HMGET.
local schema, attempt, token, most, role, reason, pause, lost = unpack(ARGV, 3)
local run = redis.call('HMGET', KEYS[1], $STATE)
if run.status ~= 'running' or run.attempt ~= attempt or tonumber(run.schema) > tonumber(schema) then return false end
local now, losses = now_ms(), run.losses + 1
if token ~= '' then
  if not holds(run, token) then return false end
elseif (tonumber(redis.call('ZSCORE', ARGV[1] .. 'leases', ARGV[2])) or 0) > now then
  return false
end

if run.cancel ~= '' then
  finish(run, now, 'cancelled', '{"type":"run.cancelled"}', 'losses', losses)
elseif losses >= tonumber(most) then
  finish(run, now, 'failed', '{"type":"run.failed","data":{"error":' .. lost .. '}}', 'losses', losses, 'error', lost)
else
  local target = role ~= '' and role or run.targetRole
  requeue(run, now, target, rerouted(run, target, reason), tonumber(pause), 'losses', losses)
end
return answer(redis.call('HMGET', KEYS[1], $FIELDS))
