#!lua flags=no-writes,allow-oom
-- ARGV: prefix, roles. For each role: queued, running, and since when its first run waits (empty: none does).
-- TIME and 3 commands a role: ZRANGE ZCARD SCARD.
local now, counts = now_ms(), {}
for i = 2, #ARGV do
  local queue = ARGV[1] .. 'queued:' .. ARGV[i]
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  local since = first[2] and tonumber(first[2]) <= now and first[2] or ''
  counts[#counts + 1] = {redis.call('ZCARD', queue), redis.call('SCARD', ARGV[1] .. 'running:' .. ARGV[i]), since}
end
return counts
