-- The beginning of the scripts that replace a record that was read: `takeover`, `intervene`, `remove` and `replace`.

-- Whether the key still has the record that was read, without the mark of waiters.
-- gives the record; else nil and the answer {0}: no record, or {1, record}: another record
local function as_read(key, read)
  local found = redis.call('GET', key)
  if not found then
    return nil, {0}
  end
  if found ~= read and found ~= read .. 'w' then
    return nil, {1, found}
  end
  return found
end

-- Whether the lease of a record in flight has run out. `by`: '' or the latest time, in ms, at which it may have been renewed: the caller's
-- clock confirms its age. `silent`: '' or for how long, in ms, nothing must have been heard of the owner.
-- gives nil: it has; else the answer {2}: no expiry; {3, ms}: alive for so long; {4}: heard of since; {6, ms}: it may have been renewed
-- later by so much, because the clock was set
local function not_over(key, found, by, silent)
  local lease, hold = string.match(found, '^i[1234]f%S+ %d+ (%d+) (%d+) ')
  local left = redis.call('PTTL', key)
  if left < 0 then
    return {2}
  end
  local age = math.max(tonumber(hold) - left, 0)
  local alive = tonumber(lease) - age
  if alive > 0 then
    return {3, alive}
  end
  if silent ~= '' and age < tonumber(silent) then
    return {4}
  end
  if (tonumber(lease) > 0 or silent ~= '') and by ~= '' then
    -- pcall: a user who may not ask for the time has to trust it.
    local time = redis.pcall('TIME')
    if not time.err then
      local renewed = time[1] * 1000 + time[2] / 1000 + left - tonumber(hold)
      if renewed > tonumber(by) then
        return {6, math.ceil(renewed - tonumber(by))}
      end
    end
  end
end

