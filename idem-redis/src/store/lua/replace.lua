-- Writes another outcome in place of the one that was read, and leaves its expiry.
--
-- KEYS  where the outcome is: the record, or the key that is kept aside for it and then the record
-- ARGV  what was read there; the new value; of an outcome that is kept aside: the record that was read
-- gives {0}: no record; {1, value}: another value; {5}: done
local _, answer = as_read(KEYS[1], ARGV[1])
if not answer and KEYS[2] then
  _, answer = as_read(KEYS[2], ARGV[3])
end
if answer then
  return answer
end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return {5}
