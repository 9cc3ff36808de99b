#!lua flags=no-writes,allow-oom
-- ARGV: prefix, limit, newest schema known, bytes. The runs that the ledger does not show as they are, changed first
-- first: at most `limit` of them, and after the first no more than fit into so many bytes. 1 command and one a run:
-- ZRANGE HMGET...
local room, runs = tonumber(ARGV[4]), {}
for _, id in ipairs(redis.call('ZRANGE', ARGV[1] .. 'changed', 0, ARGV[2] - 1)) do
  local run = redis.call('HMGET', ARGV[1] .. 'run:' .. id, $FIELDS)
  if run.status and tonumber(run.schema) <= tonumber(ARGV[3]) then
    local text = answer(run)
    room = room - #text
    if #runs > 0 and room < 0 then break end
    runs[#runs + 1] = text
  end
end
return runs
