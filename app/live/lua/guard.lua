#!lua flags=allow-oom
-- ARGV: prefix, job, period in ms. 1 command: SET. A script only so that housekeeping goes on when memory is full.
return redis.call('SET', ARGV[1] .. 'guard:' .. ARGV[2], '1', 'NX', 'PX', ARGV[3]) and 1 or 0
