#!lua flags=no-writes,allow-oom
-- ARGV: prefix, id, first seq, limit. Answers with one text of id, attempt, time and event, one after the other.
-- 1 command: XRANGE.
local words = {}
for i, entry in ipairs(redis.call('XRANGE', KEYS[2], ARGV[3] .. '-0', '+', 'COUNT', ARGV[4])) do
  local fields = entry[2]
  words[i] = table.concat({entry[1], fields[2], fields[4], fields[6]}, '\31')
end
return table.concat(words, '\31')
