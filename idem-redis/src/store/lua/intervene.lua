#!lua flags=allow-oom
-- Writes what an operator has decided in place of the record in flight that was read, or removes it; wakes who waits for it.
--
-- KEYS  the record
-- ARGV  the record that was read, without the mark of waiters; the new record, or '' to remove it; its expiry in ms; '1' if the lease must
--       have run out; '' or the latest time, in ms, at which it may have been renewed: the caller's clock confirms its age
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {5}: done; {6, ms}: the
--       lease may have been renewed later by so much, because the clock was set
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
  local lease, hold = string.match(found, '^i[123]f%S+ %d+ (%d+) (%d+) ')
  local alive = tonumber(lease) - math.max(tonumber(hold) - left, 0)
  if alive > 0 then
    return {3, alive}
  end
  if tonumber(lease) > 0 and ARGV[5] ~= '' then
    -- pcall: a user who may not ask for the time has to trust it.
    local time = redis.pcall('TIME')
    if not time.err then
      local renewed = time[1] * 1000 + time[2] / 1000 + left - tonumber(hold)
      if renewed > tonumber(ARGV[5]) then
        return {6, math.ceil(renewed - tonumber(ARGV[5]))}
      end
    end
  end
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
