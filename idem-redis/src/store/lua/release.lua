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
    string.match(text or '', '^i2f(%S+) (%d+) (%d+) (%d+) (%S+) (%d+)([^.]*)$')
end
if not owner or string.sub(found, 3, #ARGV[1]) ~= string.sub(ARGV[1], 3) then
  return found
end
-- The record in the lowest version that can say it.
local function in_flight(owner, attempt, questions, over)
  local fields = owner .. ' ' .. attempt .. ' 0 ' .. hold .. ' ' .. print
  if questions == '0' and over == '' then
    return 'i1f' .. fields .. '.'
  end
  return 'i2f' .. fields .. ' ' .. questions .. over .. '.'
end
local function number(sum)
  return string.format('%.0f', sum)
end
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
elseif origin == 'a' and over ~= '' then
  -- As it was found; its expiry begins again.
  local before = string.sub(over, 2)
  local plain = string.match(before, '^([^<]+) 0$')
  local expiry = string.match(before, '^%S+ %d+ %d+ (%d+) ')
  redis.call('SET', KEYS[1], plain and 'i1f' .. plain .. '.' or 'i2f' .. before .. '.', 'PX', expiry)
elseif origin == 'a' then
  -- Nobody's, so that undoing it once more undoes nothing more.
  redis.call('SET', KEYS[1], in_flight(string.rep('A', 22) .. 'a', attempt, questions, ''), 'KEEPTTL')
elseif ARGV[3] == '2' then
  -- Sent again, it is not counted again: what was taken over says how many there were before this attempt.
  local before = string.match(over, '^<%S+ %d+ %d+ %d+ %S+ (%d+)')
  if before then
    questions = number(tonumber(before) + 1)
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
