#!lua flags=no-writes,allow-stale,allow-oom
-- Looks what this user may not do, or the server does not know, of what the store's steps need. Touches no key.
--
-- ARGV  a key of the store's
-- gives the names of the commands
local key, missing = ARGV[1], {}
-- Redis and Valkey have it; what imitates them perhaps not.
if not redis.acl_check_cmd then
  return missing
end
for _, command in ipairs({
  {'SET', key, '1', 'NX', 'GET', 'PX', '1'}, {'GET', key}, {'DEL', key}, {'APPEND', key, '1'}, {'PTTL', key}, {'PEXPIRE', key, '1'},
}) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
  if not known or not allowed then
    missing[#missing + 1] = command[1]
  end
end
return missing
