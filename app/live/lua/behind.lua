#!lua flags=no-writes,allow-oom
-- ARGV: prefix, then id and rev of each run. The ids of those that have no live state or an older one. 1 command a run:
-- HGET.
local behind = {}
for i = 2, #ARGV, 2 do
  local rev = redis.call('HGET', ARGV[1] .. 'run:' .. ARGV[i], 'rev')
  if not rev or tonumber(rev) < tonumber(ARGV[i + 1]) then behind[#behind + 1] = ARGV[i] end
end
return behind
