#!lua flags=no-writes,allow-oom
-- ARGV: prefix, ids. Those that have no live state. 1 command an id: EXISTS.
local missing = {}
for i = 2, #ARGV do
  if redis.call('EXISTS', ARGV[1] .. 'run:' .. ARGV[i]) == 0 then missing[#missing + 1] = ARGV[i] end
end
return missing
