#!lua flags=no-writes,allow-oom
-- The server's time in ms. 1 command: TIME.
return now_ms()
