// One clock that all ranks of a host read alike: the processor's counter where it runs at a constant rate, else the
// kernel's raw monotonic clock.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

struct clock {
    int counter;  // 0: the kernel's clock, in nanoseconds
    double ticks_per_ns;
};

static inline uint64_t kernel_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t counter_now(void) {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks)::"memory");
    return ticks;
#else
    return kernel_ns();
#endif
}

static int counter_is_constant(void) {
#if defined(__x86_64__)
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[8192];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = strstr(line, "constant_tsc") != NULL;
    if (file) fclose(file);
    return found;
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

// Takes 20 ms.
static struct clock clock_calibrated(void) {
    struct clock clock = {counter_is_constant(), 1.0};
    if (!clock.counter) return clock;
    uint64_t kernel = kernel_ns(), ticks = counter_now();
    struct timespec pause = {0, 20 * 1000 * 1000};
    nanosleep(&pause, NULL);
    kernel = kernel_ns() - kernel;
    clock.ticks_per_ns = (double)(counter_now() - ticks) / (double)kernel;
    if (!(clock.ticks_per_ns > 0.001)) clock = (struct clock){0, 1.0};
    return clock;
}

static inline uint64_t clock_now(const struct clock *clock) { return clock->counter ? counter_now() : kernel_ns(); }

// Once everything before has been executed.
static inline uint64_t clock_after(const struct clock *clock) {
#if defined(__x86_64__)
    unsigned processor;
    if (clock->counter) return __rdtscp(&processor);
#endif
    return clock_now(clock);
}

static inline double clock_ns(const struct clock *clock, uint64_t ticks) { return (double)ticks / clock->ticks_per_ns; }
