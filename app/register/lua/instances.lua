#!lua flags=allow-oom
-- Answers {more to prune, heartbeats by instance, arrivals by instance}. The only script whose cost grows with the fleet.
local _, more = prune(read_pulse())
return {more and 1 or 0, redis.call('HGETALL', BEATS), redis.call('ZRANGE', SEEN, 0, -1, 'WITHSCORES')}
