#!lua flags=no-writes,allow-oom
-- ARGV: prefix, index, limit. The members of a sorted set whose time has come, oldest first. 2 commands: TIME ZRANGE.
return redis.call('ZRANGE', ARGV[1] .. ARGV[2], '-inf', now_ms(), 'BYSCORE', 'LIMIT', 0, ARGV[3])
