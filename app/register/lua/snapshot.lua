#!lua flags=allow-oom
-- Answers {known, now, end of the last gap or -1, epoch, more to prune, workers, slots, nodes}. Its cost depends on how
-- many different capabilities there are, not on how many instances.
local pulse = read_pulse()
if pulse.epoch ~= '' and emptied(pulse) and pulse.noted ~= pulse.epoch then note_gap(pulse) end
local known, more = prune(pulse)
local gap = pulse.gap or -1
-- As long as a gap is on, it ends now at the earliest.
if silent(pulse) or (pulse.epoch == '' and SEEN_EPOCH ~= '') then gap = NOW end
return {
  known and 1 or 0, NOW, gap, pulse.epoch, more and 1 or 0,
  redis.call('HGETALL', WORKERS), redis.call('HGETALL', SLOTS), redis.call('HGETALL', NODES),
}
