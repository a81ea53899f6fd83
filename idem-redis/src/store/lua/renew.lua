#!lua flags=allow-oom
-- Keeps leases, each if its record is in flight by this owner: sets the expiry from which the lease's age is reckoned.
--
-- KEYS  the records
-- ARGV  for each of them the owner's prefix, and the expiry in ms
-- gives for each of them 1: renewed; 0: no record; else the record that is there instead; {error}: no record at all
local function renew(key, owner, expiry)
  local found = redis.pcall('GET', key)
  if not found then
    return 0
  end
  if type(found) == 'table' then
    return {found.err}
  end
  local head, hold, tail = string.match(found, '^(i1f%S+ %d+ %d+ )(%d+)( %S+%.w?)$')
  if not head then
    head, hold, tail = string.match(found, '^(i[234]f%S+ %d+ %d+ )(%d+)( %S+ %d+[^.]*%.w?)$')
  end
  -- The owner comes after the version, which is that of what the record has to remember.
  if not head or string.sub(found, 3, #owner) ~= string.sub(owner, 3) then
    return found
  end
  if tonumber(hold) > tonumber(expiry) then
    -- A record never gets a shorter one.
    expiry = hold
  end
  if hold == expiry then
    redis.call('PEXPIRE', key, expiry)
  else
    -- The record holds the expiry it is given, or its lease's age would be wrong.
    redis.call('SET', key, head .. expiry .. tail, 'PX', expiry)
  end
  return 1
end

local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = renew(key, ARGV[2 * i - 1], ARGV[2 * i])
end
return answers
