#!lua flags=allow-oom
-- ARGV: prefix, id, token, batch, role (empty: the same), reason as JSON, whether this instance must not have the run
-- again ('1' or empty), events.
-- 10 commands and one an event: HMGET TIME XADD... ZREM SREM XADD HSET ZADD SADD, ZADD PUBLISH.
local token, batch, role, reason, exclude = unpack(ARGV, 3, 7)
local run = redis.call('HMGET', KEYS[1], $STATE)
if not holds(run, token) then return answer_again('hand_back', token) end
local now = now_ms()
write(run, now, batch, 8)
if exclude ~= '' then
  local instance, excluded = unpack(redis.call('HMGET', KEYS[1], 'instance', 'excluded'))
  if not excluded:find(instance, 1, true) then redis.call('HSET', KEYS[1], 'excluded', excluded .. instance) end
end
if run.cancel ~= '' then
  finish(run, now, 'cancelled', '{"type":"run.cancelled"}', 'done', done(run, 'hand_back', token))
else
  local target = role ~= '' and role or run.targetRole
  requeue(run, now, target, rerouted(run, target, reason), 0, 'done', done(run, 'hand_back', token))
end
return granted(run)
