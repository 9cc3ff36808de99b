#!lua flags=allow-oom
-- ARGV: prefix, lease in ms, then id and token of each lease. Answers for each: 'no' if it is not the caller's, else
-- the run's `cancel`. TIME and 2 commands a lease: HMGET ZADD.
local expiry, answers = now_ms() + ARGV[2], {}
for i = 3, #ARGV, 2 do
  local run = redis.call('HMGET', ARGV[1] .. 'run:' .. ARGV[i], $STATE)
  local held = holds(run, ARGV[i + 1])
  if held then redis.call('ZADD', ARGV[1] .. 'leases', expiry, ARGV[i]) end
  answers[#answers + 1] = held and run.cancel or 'no'
end
return answers
