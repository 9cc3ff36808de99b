#!lua flags=allow-oom
-- ARGV: prefix, id, token, batch, pause in ms, the event that tells of it, events.
-- 11 commands and one an event: HMGET TIME XADD... HGET ZREM SREM XADD HSET ZADD SADD, ZADD PUBLISH.
local token, batch, pause, event = unpack(ARGV, 3, 6)
local run = redis.call('HMGET', KEYS[1], $STATE)
if not holds(run, token) then return answer_again('retry', token) end
local now = now_ms()
write(run, now, batch, 7)
if run.cancel ~= '' then
  finish(run, now, 'cancelled', '{"type":"run.cancelled"}', 'done', done(run, 'retry', token))
else
  local retries = redis.call('HGET', KEYS[1], 'retries')
  requeue(run, now, run.targetRole, event, tonumber(pause), 'retries', retries + 1, 'done', done(run, 'retry', token))
end
return granted(run)
