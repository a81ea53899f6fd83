// A wall clock that a test can set: loaded into a redis-server before the C library (LD_PRELOAD). Monotonic clocks stay as they are.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// By how many seconds the clock was set: what stands in the file.
static time_t jumped(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_SET_BY");
    int file = path ? syscall(SYS_open, path, O_RDONLY) : -1;
    if (file < 0) return 0;
    syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    return atol(text);
}

// By how many nanoseconds it has gone ahead: CLOCK_FASTER_BY is in hundredths of the time.
static long long gone_ahead(void) {
    static long long first = 0;
    const char *hundredths = getenv("CLOCK_FASTER_BY");
    struct timespec steady;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
    long long now = steady.tv_sec * 1000000000LL + steady.tv_nsec;
    if (!first) first = now;
    return hundredths ? (now - first) / 100 * atol(hundredths) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long nanos = now->tv_nsec + gone_ahead();
        now->tv_sec += jumped() + nanos / 1000000000LL;
        now->tv_nsec = nanos % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
