#!lua flags=allow-oom
-- ARGV: prefix, id, token, batch, status, output or error as JSON (or empty), events.
-- 9 commands and one an event: HMGET TIME XADD... XADD ZREM SREM HSET ZADD, ZADD PUBLISH.
local token, batch, status, detail = unpack(ARGV, 3, 6)
local run = redis.call('HMGET', KEYS[1], $STATE)
if not holds(run, token) then return answer_again('finish', token) end
local now, field, event = now_ms(), 'error', '{"type":"run.cancelled"}'
write(run, now, batch, 7)
if status == 'completed' then
  field, event = 'output', '{"type":"run.completed","data":{"output":' .. detail .. '}}'
elseif status == 'failed' then
  event = '{"type":"run.failed","data":{"error":' .. detail .. '}}'
end
finish(run, now, status, event, field, detail, 'done', done(run, 'finish', token))
return granted(run)
