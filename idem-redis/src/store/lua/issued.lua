-- Claims a key that was issued. Of a record in any other state it says what that is.
--
-- No flags: where memory is short, the write is refused and no body begins, while an outcome can still be read.
--
-- KEYS  the record
-- ARGV  the record of the first attempt; its expiry in ms
-- gives 1: claimed; 0: no record; -1: its time is over; else the record that is there
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
if found ~= 'i1i.' then
  local grace = tonumber(string.match(found, '^i1i (%d+)%.$') or 0)
  if grace == 0 or grace >= 2 ^ 64 then
    -- Another state, or a length that nobody writes.
    return found
  end
  local left = redis.call('PTTL', KEYS[1])
  -- Without an expiry, which somebody took away, it has not run out.
  if left >= 0 and left <= grace then
    return -1
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
