-- Writes what an operator has decided in place of the record in flight that was read, or removes it; wakes who waits for it.
--
-- KEYS  the record
-- ARGV  the record that was read, without the mark of waiters; the new record, or '' to remove it; its expiry in ms; '1' if the lease must
--       have run out; '' or the latest time, in ms, at which it may have been renewed: the caller's clock confirms its age
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {5}: done; {6, ms}: the
--       lease may have been renewed later by so much, because the clock was set
local found, answer = as_read(KEYS[1], ARGV[1])
if found and ARGV[4] == '1' then
  answer = not_over(KEYS[1], found, ARGV[5], '')
end
if answer then
  return answer
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if string.sub(found, -1) == 'w' then
  redis.pcall('PUBLISH', KEYS[1], '')
end
return {5}
