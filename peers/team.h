// The memory that the ranks share apart from the library under test: a barrier that lets all of them go at one moment, and
// the times of their iterations.
#pragma once
#include "clock.h"
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// How long after the last arrival the ranks are released: enough for the news to reach all of them.
enum { RELEASE_NS = 1200, PATIENCE_S = 600 };

struct page {
    _Alignas(64) _Atomic uint64_t arrived;
    _Alignas(64) struct {
        _Atomic uint64_t generation, at;
    } release;
    _Alignas(64) _Atomic uint64_t wrong;
    _Alignas(64) _Atomic uint64_t iterations;
    _Alignas(64) _Atomic uint64_t ticks[];
};

struct team {
    struct page *page;
    struct clock clock;
    int rank, ranks;
    int crowded;  // more ranks than processors: hand them over instead of spinning
    size_t most_iterations;
    uint64_t barriers;
};

static size_t page_bytes(int ranks, size_t iterations) {
    return sizeof(struct page) + (size_t)ranks * iterations * sizeof(uint64_t);
}

// A descriptor of zeroed memory without a name, or -1.
static int page_create(int ranks, size_t iterations) {
    int fd = memfd_create("rankwise-peer", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)page_bytes(ranks, iterations)) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static struct page *page_map(int fd, int ranks, size_t iterations) {
    void *at = mmap(NULL, page_bytes(ranks, iterations), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void team_wait(const struct team *team) {
    uint64_t looks = 0, began = 0;
    while (atomic_load_explicit(&team->page->release.generation, memory_order_acquire) < team->barriers) {
        if (++looks % 4096 == 0) {
            uint64_t now = clock_now(&team->clock);
            if (!began) began = now;
            if (clock_ns(&team->clock, now - began) > PATIENCE_S * 1e9) {
                fprintf(stderr, "rank %d: another rank stands still\n", team->rank);
                _exit(4);
            }
        }
        if (team->crowded) sched_yield();
#if defined(__x86_64__)
        else _mm_pause();
#endif
    }
}

// Waits for all ranks; when each has a processor they leave at one moment.
static void team_barrier(struct team *team) {
    struct page *page = team->page;
    team->barriers++;
    // The last to arrive has seen what the others did before, and publishes it with the release store.
    uint64_t arrived = atomic_fetch_add_explicit(&page->arrived, 1, memory_order_acq_rel) + 1;
    if (arrived == team->barriers * (uint64_t)team->ranks) {
        uint64_t at = clock_now(&team->clock) + (uint64_t)(RELEASE_NS * team->clock.ticks_per_ns);
        atomic_store_explicit(&page->release.at, at, memory_order_relaxed);
        atomic_store_explicit(&page->release.generation, team->barriers, memory_order_release);
    } else {
        team_wait(team);
    }
    if (!team->crowded) {
        uint64_t at = atomic_load_explicit(&page->release.at, memory_order_relaxed);
        while (clock_now(&team->clock) < at) {
        }
    }
}

static void team_record(struct team *team, size_t iteration, uint64_t ticks) {
    size_t place = (size_t)team->rank * team->most_iterations + iteration;
    atomic_store_explicit(&team->page->ticks[place], ticks, memory_order_relaxed);
}

// Microseconds of the slowest rank. After a barrier.
static double team_slowest_us(const struct team *team, size_t iteration) {
    uint64_t most = 0;
    for (int rank = 0; rank < team->ranks; rank++) {
        size_t place = (size_t)rank * team->most_iterations + iteration;
        uint64_t ticks = atomic_load_explicit(&team->page->ticks[place], memory_order_relaxed);
        if (ticks > most) most = ticks;
    }
    return clock_ns(&team->clock, most) / 1e3;
}
