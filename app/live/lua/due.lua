#!lua flags=no-writes,allow-oom
-- ARGV: prefix, index, limit, ms. The members of a sorted set whose time came so long ago, oldest first. 2 commands:
-- TIME ZRANGE.
return redis.call('ZRANGE', ARGV[1] .. ARGV[2], '-inf', now_ms() - ARGV[4], 'BYSCORE', 'LIMIT', 0, ARGV[3])
