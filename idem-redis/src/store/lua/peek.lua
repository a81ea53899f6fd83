#!lua flags=no-writes
-- Reads the beginning of a record, how long it lives, and the same of the outcome that is kept aside for it: for listings, which leave outcomes out.
--
-- KEYS  the record, the outcome's own key; while their slot moves from one node to another: one of them alone
-- ARGV  how many bytes to read
-- gives {}: no record; {head, ms}; {head, ms, head of the outcome, ms}; -1 for ms: no expiry. What is no string has the head '?'
local function head(key)
  local found = redis.pcall('GETRANGE', key, 0, ARGV[1] - 1)
  if type(found) == 'table' then
    if string.find(found.err, 'WRONGTYPE') then
      return '?'
    end
    error(found.err)
  end
  return found
end
local found = head(KEYS[1])
if found == '' then
  return {}
end
local reply = {found, redis.call('PTTL', KEYS[1])}
if KEYS[2] and string.sub(found, 1, 3) == 'i1o' then
  local aside = head(KEYS[2])
  if aside ~= '' then
    reply[3] = aside
    reply[4] = redis.call('PTTL', KEYS[2])
  end
end
return reply
