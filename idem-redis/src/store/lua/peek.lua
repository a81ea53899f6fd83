#!lua flags=no-writes
-- Reads the beginnings of records, how long each lives, and the same of the outcomes that are kept aside for them: for listings and counts, which leave outcomes out.
--
-- KEYS  of each record: the record; if each has two keys, the outcome's own key
-- ARGV  how many keys each record has here; how many bytes to read; the third characters of the records that are wanted, empty for all; those of the records of which no more is wanted than this character
-- gives {marks, ..}. The marks are a character for each record. '-': no record, or none that is wanted; '.': read; any other: its third character, no more. 'o' also if the outcome's own key is not among KEYS
-- then for each that was read, in this order: {head, ms} or {head, ms, head of the outcome, ms}; -1 for ms: no expiry. What is no string has the head '?'
local pcall = redis.pcall
local sub = string.sub
local keys = KEYS
local each = tonumber(ARGV[1])
local wanted = ARGV[3]
local plain = ARGV[4]
if each == 1 then
  plain = plain .. 'o'
end
-- The last byte to read, as text: the server takes long to turn a number into text. Where most records are not read, their first three characters decide.
local last = tostring(ARGV[2] - 1)
local first = ARGV[3] .. ARGV[4] == '' and last or '2'
local function head(key, to)
  local found = pcall('GETRANGE', key, '0', to)
  if type(found) == 'table' then
    if string.find(found.err, 'WRONGTYPE') then
      return '?'
    end
    error(found.err)
  end
  return found
end
local function mark(start)
  local letter = string.match(start, '^i[1234]([ifrcedo])')
  if start == '' or letter and wanted ~= '' and not string.find(wanted, letter, 1, true) then
    return '-'
  end
  return letter and string.find(plain, letter, 1, true) and letter or '.'
end
-- By the first three characters, of which few kinds occur.
local known = {}
local marks = {}
local replies = {''}
for i = 1, #keys, each do
  local found = head(keys[i], first)
  local start = sub(found, 1, 3)
  local is = known[start] or mark(start)
  known[start] = is
  marks[#marks + 1] = is
  if is == '.' then
    if first ~= last then
      found = head(keys[i], last)
    end
    local reply = {found, redis.call('PTTL', keys[i])}
    if each == 2 and string.find(start, '^i[1234]o') then
      local aside = head(keys[i + 1], last)
      if aside ~= '' then
        reply[3] = aside
        reply[4] = redis.call('PTTL', keys[i + 1])
      end
    end
    replies[#replies + 1] = reply
  end
end
replies[1] = table.concat(marks)
return replies
