#!lua flags=allow-oom
-- ARGV from 6: node:<name> or role:<name>, who wishes it (as JSON). Answers what is stored: the first wish counts.
local key, by = ARGV[6], ARGV[7]
redis.call('HSETNX', DRAINS, key, string.format('{"at":%.0f,"by":%s}', NOW, by))
return redis.call('HGET', DRAINS, key)
