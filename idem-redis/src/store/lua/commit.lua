#!lua flags=allow-oom
-- Records an outcome, if the record is in flight by this owner.
--
-- allow-oom: the body has run. To refuse its outcome because memory is short would free nothing and break the promise.
--
-- KEYS  the record; where the outcome is kept aside: its own key, unless it was written there before
-- ARGV  the record as it was claimed, or as much of it as is known: the owner's prefix at least; the new record, its expiry in ms; where kept
--       aside: the outcome, its expiry in ms
-- gives 1: recorded, now or before; 0: no record, or another outcome; else the record that is there instead
local found = redis.call('GET', KEYS[1])
if not found then
  return 0
end
if found == ARGV[1] and #found > 25 and not KEYS[2] then
  -- As nearly always, so by one comparison: in flight by this owner, whole, and nobody waits.
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if string.sub(found, 3, 25) == string.sub(ARGV[1], 3, 25) and string.find(found, '^i[1234]') then
  -- A record in flight by this owner, whose prefix nobody can guess, whatever else it has to remember. Its last byte says whether it is whole,
  -- and whether somebody waits.
  local last = string.byte(found, -1)
  if last == 46 or last == 119 then
    if KEYS[2] then
      redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
    end
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if last == 119 then
      -- pcall: without the right to the channel the outcome is recorded all the same, and waiters look by themselves.
      redis.pcall('PUBLISH', KEYS[1], '')
    end
    return 1
  end
elseif found == ARGV[2] then
  -- Where the outcome is kept aside, the record is but a mark. An outcome that is gone by now was this owner's: no other has its attempt.
  local aside = KEYS[2] and redis.call('GET', KEYS[2])
  if aside and aside ~= ARGV[4] then
    return 0
  end
  -- Written again as it is: WAIT, which may follow, counts what its own connection has written, and the first time was perhaps another.
  redis.call('SET', KEYS[1], found, 'KEEPTTL')
  return 1
end
return found
