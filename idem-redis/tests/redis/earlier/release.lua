#!lua flags=allow-oom
-- Gives a key up, if the record is in flight by this owner.
--
-- KEYS  the record
-- ARGV  the owner's prefix; the expiry in ms of the released record, or '' to leave it abandoned; '1' to undo the claim, whose body has
--       not begun
-- gives 1: given up; 0: no record; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
local head, attempt, tail = string.match(found, '^(i1f%S+) (%d+) %d+( %d+ %S+%.)w?$')
if not head or string.sub(found, 1, #ARGV[1]) ~= ARGV[1] then
  return found
end
local origin = 'r'
if ARGV[3] == '1' then
  -- The letter behind the owner says what the claim found.
  origin = string.sub(head, -1)
  attempt = string.format('%.0f', tonumber(attempt) - 1)
end
if origin == 'n' then
  redis.call('DEL', KEYS[1])
elseif origin == 'i' then
  redis.call('SET', KEYS[1], 'i1i.', 'KEEPTTL')
elseif origin == 'a' then
  -- Nobody's, so that undoing it once more undoes nothing more.
  redis.call('SET', KEYS[1], 'i1f' .. string.rep('A', 22) .. 'a ' .. attempt .. ' 0' .. tail, 'KEEPTTL')
elseif ARGV[2] == '' then
  redis.call('SET', KEYS[1], head .. ' ' .. attempt .. ' 0' .. tail, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], 'i1r ' .. attempt .. '.', 'PX', ARGV[2])
end
if string.sub(found, -1) == 'w' then
  redis.pcall('PUBLISH', KEYS[1], '')
end
return 1
