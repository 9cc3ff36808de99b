-- What the scripts share; it says in Lua what app/transitions.py says in Python. Functions are separated by empty lines
-- and call only those above them.
--
-- In every script ARGV[1] is the key prefix. In one about a single run ARGV[2] is its id, KEYS[1] its hash, KEYS[2] its
-- event stream.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The run as an answer: one text, which clients read far quicker than a list.
local function answer(run)
  for i = 1, #run do run[i] = run[i] or '' end
  return table.concat(run, '\31')
end

local function holds(run, token)
  return token ~= '' and run.token == token
end

-- The answer to whoever holds the lease, and to whoever does not.
local function granted(run)
  return {1, tonumber(run.seq), run.cancel}
end

local function refused()
  return {0, 0, ''}
end

-- What `done` will say: which call gave up the lease, with which token, and how it was answered. One event is still to
-- be written when this is called.
local function done(run, by, token)
  return table.concat({run.seq + 1, run.cancel, by, token}, ' ')
end

-- The answer to a caller that holds no lease: as the first time, if this is the call that gave it up.
local function answer_again(by, token)
  local seq, cancel, call = (redis.call('HGET', KEYS[1], 'done') or ''):match('^(%d+) (%a*) (.*)$')
  if call == by .. ' ' .. token then return {1, tonumber(seq), cancel} end
  return {0, 0, ''}
end

-- Number an event and write it. 1 command.
local function log(run, now, event)
  run.seq = run.seq + 1
  redis.call('XADD', KEYS[2], run.seq .. '-' .. run.epoch, 'attempt', run.attempt, 'at', now, 'event', event)
end

-- Write the batch ARGV[first..] unless it is empty or its number was seen before. 1 command an event.
local function write(run, now, batch, first)
  if first > #ARGV or tonumber(batch) <= tonumber(run.batch) then return end
  for i = first, #ARGV do log(run, now, ARGV[i]) end
  run.batch = batch
end

-- Whoever follows the ledger or the run learns that there is something new. 2 commands.
local function tell(run, now)
  redis.call('ZADD', ARGV[1] .. 'changed', 'NX', now, ARGV[2])
  redis.call('PUBLISH', ARGV[1] .. 'run.events.' .. ARGV[2], run.seq)
end

-- Take the run out of the indexes that it is in. 1 command if queued, and 1 if it expires; 2 if running.
local function leave(run)
  if run.status == 'queued' then
    redis.call('ZREM', ARGV[1] .. 'queued:' .. run.targetRole, ARGV[2])
    if run.expiresMs ~= '' then redis.call('ZREM', ARGV[1] .. 'expiring', ARGV[2]) end
  else
    redis.call('ZREM', ARGV[1] .. 'leases', ARGV[2])
    redis.call('SREM', ARGV[1] .. 'running:' .. run.targetRole, ARGV[2])
  end
end

-- The run ends; `...` are further fields and their values. 6 commands if queued, 7 if running.
local function finish(run, now, status, event, ...)
  log(run, now, event)
  leave(run)
  redis.call('HSET', KEYS[1], 'status', status, 'endedMs', now, 'waitingFor', '', 'token', '', 'seq', run.seq,
    'rev', run.rev + 1, 'cancel', run.cancel, ...)
  redis.call('ZADD', ARGV[1] .. 'ended', now, ARGV[2])
  tell(run, now)
end

-- The run waits for a role, since a time that may be to come. 2 commands.
local function enqueue(role, since)
  redis.call('ZADD', ARGV[1] .. 'queued:' .. role, since, ARGV[2])
  redis.call('SADD', ARGV[1] .. 'waiting', role)
end

-- The event of a run that is given to another role. `reason` is JSON.
local function rerouted(run, target, reason)
  return '{"type":"run.rerouted","data":{"from":' .. cjson.encode(run.targetRole) .. ',"to":' .. cjson.encode(target)
    .. ',"reason":' .. reason .. '}}'
end

-- A running run goes back into a queue as its next attempt, to which the event belongs; `...` are further fields and
-- their values. 8 commands.
local function requeue(run, now, target, event, pause, ...)
  leave(run)
  run.attempt = run.attempt + 1
  log(run, now, event)
  redis.call('HSET', KEYS[1], 'status', 'queued', 'targetRole', target, 'attempt', run.attempt, 'worker', '',
    'token', '', 'seq', run.seq, 'rev', run.rev + 1, 'notBeforeMs', pause > 0 and now + pause or 0, ...)
  enqueue(target, now + pause)
  tell(run, now)
end
