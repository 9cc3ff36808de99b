#!lua flags=allow-oom
-- ARGV: prefix, the server's run_id, whether it is trusted from now on ('1' or empty). Answers whether it is (1 or 0).
-- 1 command: GET or SET.
if ARGV[3] == '' then return redis.call('GET', ARGV[1] .. 'trusted') == ARGV[2] and 1 or 0 end
redis.call('SET', ARGV[1] .. 'trusted', ARGV[2])
return 1
