#!lua
-- ARGV: prefix, id, token, batch, events.
-- 4 commands and one an event: HMGET TIME XADD... HSET PUBLISH. Refused when memory is full.
local run = redis.call('HMGET', KEYS[1], $STATE)
if not holds(run, ARGV[3]) then return refused() end
local before = tonumber(run.seq)
write(run, now_ms(), ARGV[4], 5)
if run.seq ~= before then
  redis.call('HSET', KEYS[1], 'seq', run.seq, 'batch', run.batch)
  redis.call('PUBLISH', ARGV[1] .. 'run.events.' .. ARGV[2], run.seq)
end
return granted(run)
