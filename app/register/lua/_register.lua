-- What the register's scripts share. It says in Lua what app/register/memory.py says in Python.
--
-- Every script: ARGV[1] is the key prefix, ARGV[2] the epoch that the caller has seen ('' if none), then ttl,
-- silence and unknown of app/register/times.py in ms. Heartbeats arrive as JSON and are never parsed.

local PREFIX, SEEN_EPOCH = ARGV[1], ARGV[2]
local TTL, SILENCE, UNKNOWN = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local BATCH = 200

local PULSE, SEEN, BEATS, ENTRIES, WORKERS, SLOTS, NODES, HOLDERS, DRAINS =
  PREFIX .. 'register:pulse', PREFIX .. 'register:seen', PREFIX .. 'register:beats', PREFIX .. 'register:entries',
  PREFIX .. 'register:workers', PREFIX .. 'register:slots', PREFIX .. 'register:nodes', PREFIX .. 'register:holders',
  PREFIX .. 'register:drains'

local time = redis.call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

local function read_pulse()
  local at, epoch, gap, noted = unpack(redis.call('HMGET', PULSE, 'at', 'epoch', 'gap', 'noted'))
  return {at = tonumber(at or nil), epoch = epoch or '', gap = tonumber(gap or nil), noted = noted or ''}
end

-- A gap is on: instances are registered and none was heard of for too long. A clock that was set back far makes every
-- stamp as meaningless as a pause does.
local function silent(pulse)
  return pulse.at and math.abs(NOW - pulse.at) > SILENCE and redis.call('ZCARD', SEEN) > 0
end

-- The server was emptied: the caller has seen another epoch than this one.
local function emptied(pulse)
  return SEEN_EPOCH ~= '' and SEEN_EPOCH ~= pulse.epoch
end

-- Note that a gap ended now.
local function note_gap(pulse)
  pulse.gap, pulse.noted = NOW, pulse.epoch
  redis.call('HSET', PULSE, 'gap', NOW, 'noted', pulse.epoch)
end

-- Add an entry 'slots nodes-hash class' to the counts, or take it off.
local function count(entry, sign)
  local slots, nodes, class = string.match(entry, '^(%-?%d+) (%x+) (.*)$')
  if redis.call('HINCRBY', WORKERS, class, sign) == 0 then
    redis.call('HDEL', WORKERS, class)
    redis.call('HDEL', SLOTS, class)
  else
    redis.call('HINCRBY', SLOTS, class, sign * slots)
  end
  if redis.call('HINCRBY', HOLDERS, nodes, sign) == 0 then
    redis.call('HDEL', HOLDERS, nodes)
    redis.call('HDEL', NODES, nodes)
  end
end

local function remove(instance)
  local entry = redis.call('HGET', ENTRIES, instance)
  if entry then count(entry, -1) end
  redis.call('HDEL', ENTRIES, instance)
  redis.call('HDEL', BEATS, instance)
  redis.call('ZREM', SEEN, instance)
end

-- Forget who is gone, at most BATCH of them. Answers whether the register knows who that is, and whether there may be
-- more of them.
local function prune(pulse)
  if silent(pulse) or (pulse.epoch == '' and SEEN_EPOCH ~= '') then return false, false end
  if pulse.gap and pulse.gap > NOW then note_gap(pulse) end
  if pulse.gap and NOW - pulse.gap < UNKNOWN then return false, false end
  -- The clock was set back: the time to live begins anew, or it would take hours to notice a death.
  local early = redis.call('ZRANGE', SEEN, '(' .. NOW, '+inf', 'BYSCORE', 'LIMIT', 0, BATCH)
  for _, instance in ipairs(early) do redis.call('ZADD', SEEN, NOW, instance) end
  local gone = redis.call('ZRANGE', SEEN, '-inf', NOW - TTL, 'BYSCORE', 'LIMIT', 0, BATCH)
  for _, instance in ipairs(gone) do remove(instance) end
  return true, #gone == BATCH
end
