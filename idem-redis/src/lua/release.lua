#!lua flags=allow-oom
-- Gives a key up, if the record is in flight by this owner.
--
-- KEYS  the record
-- ARGV  the owner's prefix; the expiry in ms of the released record, or '' to leave it abandoned
-- gives 1: given up; 0: no record; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local head, attempt, tail = string.match(found, '^(i1f%S+) (%d+) %d+( %d+ %S+%.)w?$')
if not head or string.sub(found, 1, #ARGV[1]) ~= ARGV[1] then
  return found
end
if ARGV[2] == '' then
  redis.call('SET', KEYS[1], head .. ' ' .. attempt .. ' 0' .. tail, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], 'i1r ' .. attempt .. '.', 'PX', ARGV[2])
end
if string.sub(found, -1) == 'w' then
  redis.pcall('PUBLISH', KEYS[1], '')
end
return 1
