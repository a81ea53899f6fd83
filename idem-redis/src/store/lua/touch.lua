#!lua flags=allow-oom
-- Writes a record again as it is, if it is in flight by this owner: nobody sees a difference but the replicas, which get it once more.
--
-- KEYS  the record
-- ARGV  the owner's prefix
-- gives 1: written; 0: no record; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local whole = string.find(found, '^i1f%S+ %d+ %d+ %d+ %S+%.w?$')
  or string.find(found, '^i[234]f%S+ %d+ %d+ %d+ %S+ %d+[^.]*%.w?$')
-- The owner comes after the version, which is that of what the record has to remember.
if not whole or string.sub(found, 3, #ARGV[1]) ~= string.sub(ARGV[1], 3) then
  return found
end
redis.call('SET', KEYS[1], found, 'KEEPTTL')
return 1
