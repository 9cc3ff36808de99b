#!lua flags=allow-oom
-- ARGV: prefix. The roles that have queued runs; the others are forgotten. 1 command and at most two a role: SMEMBERS
-- EXISTS SREM.
local waiting = {}
for _, role in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'waiting')) do
  if redis.call('EXISTS', ARGV[1] .. 'queued:' .. role) == 1 then
    waiting[#waiting + 1] = role
  else
    redis.call('SREM', ARGV[1] .. 'waiting', role)
  end
end
return waiting
