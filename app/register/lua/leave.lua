#!lua flags=allow-oom
-- ARGV from 6: instance.
remove(ARGV[6])
return 1
