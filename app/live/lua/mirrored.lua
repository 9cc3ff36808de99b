#!lua flags=allow-oom
-- ARGV: prefix, id, rev. 2 commands: HGET ZREM.
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev or tonumber(rev) <= tonumber(ARGV[3]) then redis.call('ZREM', ARGV[1] .. 'changed', ARGV[2]) end
