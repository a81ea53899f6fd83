#!lua flags=allow-oom
-- Keeps a lease, if the record is in flight by this owner: sets the expiry from which the lease's age is reckoned.
--
-- KEYS  the record
-- ARGV  the owner's prefix, the expiry in ms
-- gives 1: renewed; 0: no record; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local head, hold, tail = string.match(found, '^(i1f%S+ %d+ %d+ )(%d+)( %S+%.w?)$')
if not head or string.sub(found, 1, #ARGV[1]) ~= ARGV[1] then
  return found
end
if hold == ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  -- The record holds the expiry it is given, or its lease's age would be wrong.
  redis.call('SET', KEYS[1], head .. ARGV[2] .. tail, 'PX', ARGV[2])
end
return 1
