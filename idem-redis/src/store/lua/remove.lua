-- Removes the record that was read, if it is still there and not in flight and alive.
--
-- KEYS  the record; where an outcome is kept aside for it: its own key
-- ARGV  the record that was read, without the mark of waiters; '' or the latest time, in ms, at which its lease may have been
--       renewed: the caller's clock confirms its age
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {5}: removed; {6, ms}: the
--       lease may have been renewed later by so much, because the clock was set
local found, answer = as_read(KEYS[1], ARGV[1])
if found and string.find(found, '^i[1234]f%S+ %d+ %d+ %d+ ') then
  answer = not_over(KEYS[1], found, ARGV[2], '')
end
if answer then
  return answer
end
redis.call('DEL', unpack(KEYS))
return {5}
