#!/bin/sh
# A redis-server whose wall clock a test sets, by the files beside the link that it is called by.
# No test writes this file: a program that was just written cannot be run while another thread's
# child, between fork and exec, still has it open ("Text file busy").
here=${0%/*}
CLOCK_FASTER_BY=$(cat "$here/faster_by") CLOCK_SET_BY=$here/set_by LD_PRELOAD=$here/set_clock.so \
    exec redis-server "$@"
