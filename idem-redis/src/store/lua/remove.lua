#!lua flags=allow-oom
-- Removes the record that was read, if it is still there and not in flight and alive.
--
-- KEYS  the record; where an outcome is kept aside for it: its own key
-- ARGV  the record that was read, without the mark of waiters; '' or the latest time, in ms, at which its lease may have been
--       renewed: the caller's clock confirms its age
-- gives {0}: no record; {1, record}: another record; {2}: no expiry; {3, ms}: alive for so long; {5}: removed; {6, ms}: the
--       lease may have been renewed later by so much, because the clock was set
local found = redis.call('GET', KEYS[1])
if not found then
  return {0}
end
if found ~= ARGV[1] and found ~= ARGV[1] .. 'w' then
  return {1, found}
end
local lease, hold = string.match(found, '^i1f%S+ %d+ (%d+) (%d+) %S+%.w?$')
if not lease then
  lease, hold = string.match(found, '^i[23]f%S+ %d+ (%d+) (%d+) %S+ %d+[^.]*%.w?$')
end
if lease then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then
    return {2}
  end
  local alive = tonumber(lease) - math.max(tonumber(hold) - left, 0)
  if alive > 0 then
    return {3, alive}
  end
  if tonumber(lease) > 0 and ARGV[2] ~= '' then
    local time = redis.pcall('TIME')
    if not time.err then
      local renewed = time[1] * 1000 + time[2] / 1000 + left - tonumber(hold)
      if renewed > tonumber(ARGV[2]) then
        return {6, math.ceil(renewed - tonumber(ARGV[2]))}
      end
    end
  end
end
redis.call('DEL', unpack(KEYS))
return {5}
