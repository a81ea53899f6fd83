-- Writes a record in place of the one that was read, if that is still there and its lease, where it has one, has run out.
--
-- No flags: where memory is short, the write is refused and no body begins, while the lease can still be looked at.
--
-- KEYS  the record
-- ARGV  the record that was read, without the mark of waiters; the new record, or '' to write none; its expiry in ms;
--       '1' if the lease must have run out; '' or the latest time, in ms, at which it may have been renewed: the claimant's clock confirms its
--       age; '' or for how long, in ms, nothing must have been heard of the owner, else none is written
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {4}: may be taken; {5}: taken; {6, ms}: it
--       may have been renewed later by so much, because the clock was set
local found, answer = as_read(KEYS[1], ARGV[1])
if found and ARGV[4] == '1' then
  answer = not_over(KEYS[1], found, ARGV[5], ARGV[6])
end
if answer then
  return answer
end
if ARGV[2] == '' then
  return {4}
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {5}
