#!lua flags=no-writes
-- Reads the beginnings of records, how long each lives, and the same of the outcomes that are kept aside for them: for listings, which leave outcomes out.
--
-- KEYS  of each record: the record, the outcome's own key
-- ARGV  how many bytes to read; the third characters of the records that are wanted, empty for all
-- gives for each {}: no record, or none that is wanted; {head, ms}; {head, ms, head of the outcome, ms}; -1 for ms: no expiry. What is no string has the head '?'
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
local replies = {}
for i = 1, #KEYS, 2 do
  local found = head(KEYS[i])
  local letter = string.match(found, '^i[123]([ifrcedo])')
  local reply = {}
  if found ~= '' and (ARGV[2] == '' or not letter or string.find(ARGV[2], letter, 1, true)) then
    reply = {found, redis.call('PTTL', KEYS[i])}
    if letter == 'o' then
      local aside = head(KEYS[i + 1])
      if aside ~= '' then
        reply[3] = aside
        reply[4] = redis.call('PTTL', KEYS[i + 1])
      end
    end
  end
  replies[#replies + 1] = reply
end
return replies
