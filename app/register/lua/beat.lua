#!lua flags=allow-oom
-- ARGV from 6: instance, heartbeat, entry, nodes-hash, nodes, when the sender expects this to arrive ('' if it does not
-- know), how far from it is too far, node, role. Answers {accepted, now, gap, epoch, drain}. 10 commands for an unchanged
-- instance.
local instance, heartbeat, entry, hash, nodes, expected, tolerance, node, role = unpack(ARGV, 6)
if expected ~= '' and math.abs(NOW - expected) > tonumber(tolerance) then return {0, NOW, 0, '', 0} end

local pulse = read_pulse()
local gap = silent(pulse)
if pulse.epoch == '' then pulse.epoch = time[1] .. '.' .. time[2] end
-- Every process that outlived the server's memory comes with the old epoch; the gap is noted once.
if emptied(pulse) and pulse.noted ~= pulse.epoch then gap = true end
if gap then note_gap(pulse) end
pulse.at = NOW
redis.call('HSET', PULSE, 'at', NOW, 'epoch', pulse.epoch)

local before = redis.call('HGET', ENTRIES, instance)
if before ~= entry then
  redis.call('HSET', NODES, hash, nodes)
  count(entry, 1)
  if before then count(before, -1) end
  redis.call('HSET', ENTRIES, instance, entry)
end
redis.call('HSET', BEATS, instance, heartbeat)
redis.call('ZADD', SEEN, NOW, instance)
prune(pulse)
redis.call('PUBLISH', PREFIX .. 'worker.heartbeat', heartbeat)
local drains = redis.call('HMGET', DRAINS, 'node:' .. node, 'role:' .. role)
return {1, NOW, gap and 1 or 0, pulse.epoch, (drains[1] or drains[2]) and 1 or 0}
