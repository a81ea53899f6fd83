-- Writes a record in place of the one that was read, if that is still there and its lease, where it has one, has run out.
--
-- No flags: where memory is short, the write is refused and no body begins, while the lease can still be looked at.
--
-- KEYS  the record
-- ARGV  the record that was read, without the mark of waiters; the new record, or '' to write none; its expiry in ms;
--       '1' if the lease must have run out; '' or the latest, in ms, that the server's clock can show unless somebody set it
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {4}: may be taken; {5}: taken; {6}: the
--       clock was set ahead, so that the lease's age cannot be told
local found = redis.call('GET', KEYS[1])
if not found then
  return {0}
end
if found ~= ARGV[1] and found ~= ARGV[1] .. 'w' then
  return {1, found}
end
if ARGV[4] == '1' then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then
    return {2}
  end
  local lease, hold = string.match(found, '^i1f%S+ %d+ (%d+) (%d+) ')
  local alive = tonumber(lease) - math.max(tonumber(hold) - left, 0)
  if alive > 0 then
    return {3, alive}
  end
  if tonumber(lease) > 0 and ARGV[5] ~= '' then
    -- pcall: a user who may not ask for the time has to trust it.
    local time = redis.pcall('TIME')
    if not time.err and time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[5]) then
      return {6}
    end
  end
end
if ARGV[2] == '' then
  return {4}
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {5}
