#!lua flags=allow-oom
-- Gives a key up, if the record is in flight by this owner.
--
-- KEYS  the record
-- ARGV  the owner's prefix; the expiry in ms of the released record, or '' to leave it abandoned; '1' if a released record names its run; '1'
--       to undo the claim, whose body has not begun; '2' to leave it abandoned after a question that nobody answered
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
    string.match(text or '', '^i[234]f(%S+) (%d+) (%d+) (%d+) (%S+) (%d+)([^.]*)$')
end
if not owner or string.sub(found, 3, #ARGV[1]) ~= string.sub(ARGV[1], 3) then
  return found
end
-- A record, with those that it took over, in the lowest version that can say it.
local function written(records)
  if string.find(records, ' r' .. string.rep('[%w_-]', 22)) then
    return 'i4f' .. records .. '.'
  end
  for record in string.gmatch(records, '[^<]+') do
    if string.find(record, '^%S+ %d+ %d+ %d+ %S+ %d+ ') then
      return 'i3f' .. records .. '.'
    end
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
-- Behind the questions: the metadata and the run of the record itself, and the record that it took over.
local more, before = string.match(over, '^([^<]*)<?(.*)$')
-- The letter behind the owner says what the claim found.
local claimed = string.sub(owner, -1)
-- The run that a record says it belongs to: of its own words, or by the records that it took over.
local function named(words)
  return string.match(words, ' r(' .. string.rep('[%w_-]', 22) .. ')$')
end
local function run()
  local run, of, letter, rest = named(more), string.sub(owner, 1, 22), claimed, before
  while not run and letter == 'a' and rest ~= '' do
    local words
    words, rest = string.match(rest, '^([^<]*)<?(.*)$')
    run, of, letter = named(words), string.sub(words, 1, 22), string.sub(words, 23, 23)
  end
  return run or of
end
-- With a run, it stays at least as long as the record in flight would have.
local function released(run, expiry)
  if run then
    redis.call('SET', KEYS[1], 'i4r ' .. attempt .. ' ' .. questions .. ' r' .. run .. '.', 'PX', tonumber(hold) > tonumber(expiry) and hold or expiry)
  elseif questions == '0' then
    redis.call('SET', KEYS[1], 'i1r ' .. attempt .. '.', 'PX', expiry)
  else
    redis.call('SET', KEYS[1], 'i2r ' .. attempt .. ' ' .. questions .. '.', 'PX', expiry)
  end
end
local origin = 'r'
if ARGV[4] == '1' then
  origin = claimed
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
  redis.call('SET', KEYS[1], in_flight(string.rep('A', 22) .. 'a', attempt, questions, more), 'KEEPTTL')
elseif ARGV[4] == '2' then
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
elseif ARGV[4] == '1' then
  -- As it was found.
  released(named(more), ARGV[2])
elseif ARGV[3] == '1' or claimed == 'a' or named(more) then
  released(run(), ARGV[2])
else
  released(nil, ARGV[2])
end
if mark == 'w' then
  redis.pcall('PUBLISH', KEYS[1], '')
end
return 1
