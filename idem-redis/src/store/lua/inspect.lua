#!lua flags=no-writes
-- Reads a record and how long it lives, and the outcome that is kept aside for it.
--
-- KEYS  the record, the outcome's own key; while their slot moves from one node to another: one of them alone
-- gives {}: no record; {record, ms}; {record, ms, outcome, ms}; -1 for ms: no expiry
local found = redis.call('GET', KEYS[1])
if not found then
  return {}
end
local reply = {found, redis.call('PTTL', KEYS[1])}
if KEYS[2] and string.sub(found, 1, 3) == 'i1o' then
  local aside = redis.call('GET', KEYS[2])
  if aside then
    reply[3] = aside
    reply[4] = redis.call('PTTL', KEYS[2])
  end
end
return reply
