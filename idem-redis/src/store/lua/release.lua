#!lua flags=allow-oom
-- Gives a key up, if the record is in flight by this owner.
--
-- KEYS  the record
-- ARGV  the owner's prefix; the expiry in ms of the released record, or '' to leave it abandoned; '1' to undo the claim, whose body has
--       not begun; '2' to leave it abandoned after a question that nobody answered
-- gives 1: given up; 0: no record; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local text, mark = string.match(found, '^(.*)%.(w?)$')
local questions, over = '0', ''
local owner, attempt, lease, hold, print = string.match(text or '', '^i1f(%S+) (%d+) (%d+) (%d+) (%S+)$')
if not owner then
  owner, attempt, lease, hold, print, questions, over =
    string.match(text or '', '^i[23]f(%S+) (%d+) (%d+) (%d+) (%S+) (%d+)([^.]*)$')
end
if not owner or string.sub(found, 3, #ARGV[1]) ~= string.sub(ARGV[1], 3) then
  return found
end
-- A record, with those that it took over, in the lowest version that can say it.
local function written(records)
  if string.find(records, ' 00%-' .. string.rep('%x', 32) .. '%-') then
    return 'i3f' .. records .. '.'
  end
  local plain = string.match(records, '^([^<]+) 0$')
  return plain and 'i1f' .. plain .. '.' or 'i2f' .. records .. '.'
end
local function in_flight(owner, attempt, questions, more)
  return written(owner .. ' ' .. attempt .. ' 0 ' .. hold .. ' ' .. print .. ' ' .. questions .. more)
end
local function number(sum)
  return string.format('%.0f', sum)
end
-- Behind the questions: the trace of the record itself, and the record that it took over.
local trace, before = string.match(over, '^([^<]*)<?(.*)$')
local origin = 'r'
if ARGV[3] == '1' then
  -- The letter behind the owner says what the claim found.
  origin = string.sub(owner, -1)
  attempt = number(tonumber(attempt) - 1)
end
if origin == 'n' then
  redis.call('DEL', KEYS[1])
elseif origin == 'i' then
  redis.call('SET', KEYS[1], 'i1i.', 'KEEPTTL')
elseif origin == 'a' and before ~= '' then
  -- As it was found; its expiry begins again.
  local expiry = string.match(before, '^%S+ %d+ %d+ (%d+) ')
  redis.call('SET', KEYS[1], written(before), 'PX', expiry)
elseif origin == 'a' then
  -- Nobody's, so that undoing it once more undoes nothing more.
  redis.call('SET', KEYS[1], in_flight(string.rep('A', 22) .. 'a', attempt, questions, trace), 'KEEPTTL')
elseif ARGV[3] == '2' then
  -- Sent again, it is not counted again: what was taken over says how many there were before this attempt.
  local asked = string.match(before, '^%S+ %d+ %d+ %d+ %S+ (%d+)')
  if asked then
    questions = number(tonumber(asked) + 1)
  elseif lease ~= '0' then
    questions = number(tonumber(questions) + 1)
  end
  redis.call('SET', KEYS[1], in_flight(owner, attempt, questions, over), 'KEEPTTL')
elseif ARGV[2] == '' then
  redis.call('SET', KEYS[1], in_flight(owner, attempt, questions, over), 'KEEPTTL')
elseif questions == '0' then
  redis.call('SET', KEYS[1], 'i1r ' .. attempt .. '.', 'PX', ARGV[2])
else
  redis.call('SET', KEYS[1], 'i2r ' .. attempt .. ' ' .. questions .. '.', 'PX', ARGV[2])
end
if mark == 'w' then
  redis.pcall('PUBLISH', KEYS[1], '')
end
return 1
