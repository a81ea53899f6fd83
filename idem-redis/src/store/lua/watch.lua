#!lua flags=allow-oom
-- Looks whether a record is in flight under an attempt and alive, and leaves the mark that somebody waits for it.
--
-- KEYS  the record
-- ARGV  the attempt; '1' to leave the mark
-- gives how many ms the lease is alive, 0 if it is not or there is no record, -1 if it has no expiry; else the record
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local attempt, lease, hold, mark = string.match(found, '^i1f%S+ (%d+) (%d+) (%d+) %S+%.(w?)$')
if not attempt then
  attempt, lease, hold, mark = string.match(found, '^i[234]f%S+ (%d+) (%d+) (%d+) %S+ %d+[^.]*%.(w?)$')
end
if not attempt then
  return found
end
if attempt ~= ARGV[1] then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return -1
end
local alive = tonumber(lease) - math.max(tonumber(hold) - left, 0)
if alive <= 0 then
  return 0
end
if ARGV[2] == '1' and mark == '' then
  -- APPEND keeps the expiry.
  redis.call('APPEND', KEYS[1], 'w')
end
return alive
