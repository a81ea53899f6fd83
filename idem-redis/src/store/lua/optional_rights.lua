#!lua flags=no-writes,allow-stale,allow-oom
-- Looks what this user may not do of what no promise needs: waking, looking at the clock, listing. Touches no key.
--
-- ARGV  a key of the store's, which is a channel's name too
-- gives the names of the commands
local key, missing = ARGV[1], {}
if not redis.acl_check_cmd then
  return missing
end
for _, command in ipairs({
  {'PUBLISH', key, ''}, {'SUBSCRIBE', key}, {'TIME'}, {'INFO'}, {'SCAN', '0'}, {'GETRANGE', key, '0', '0'},
}) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
  if not known or not allowed then
    missing[#missing + 1] = command[1]
  end
end
return missing
