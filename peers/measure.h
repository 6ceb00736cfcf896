// The timed loop of one cell, and what the first rank prints of it. The definition of a time is that of
// crates/cli/src/bench/measure.rs.
#pragma once
#include "cell.h"
#include "team.h"
#include <stdio.h>
#include <string.h>

// Begins the lines that are for `rankwise bench`.
#define MARK "@rankwise-bench "

enum { MOST_ITERATIONS = 2000, MOST_SAMPLES = 4096, ALIGNMENT = 4096, LEAST_ITERATIONS = 5, WARM_UP_MS = 200 };

struct effort {
    long iterations;  // 0: as many as the budget buys
    double budget_ms;
    double slowest_ms;  // a cell of which a call takes longer is skipped; 0: none
};

// One cell on this rank with its buffers.
struct work {
    const struct cell *cell;
    const struct shares *shares;
    struct pattern pattern;
    unsigned char *source, *dest;
    void *library;  // what the call needs besides
    void (*call)(struct work *);
};

// Zeroed memory that begins on a page; null when there is none.
static unsigned char *buffer_new(size_t bytes) {
    void *at = NULL;
    if (posix_memalign(&at, ALIGNMENT, bytes ? bytes : 1) != 0) return NULL;
    return memset(at, 0, bytes ? bytes : 1);
}

static unsigned char *work_source(const struct work *work, size_t *bytes) {
    size_t size = DTYPE[work->cell->dtype].size;
    *bytes = work->shares->source_len * size;
    return work->cell->in_place ? work->dest + work->shares->source_at * size : work->source;
}

// Overwrites the result, and leaves the source as warm as it is.
static void work_spoil(struct work *work) {
    size_t all = work->shares->dest_len * DTYPE[work->cell->dtype].size, bytes, from = all, to = all;
    const unsigned char *source = work_source(work, &bytes);
    if (work->cell->in_place) {
        from = (size_t)(source - work->dest);
        to = from + bytes;
    }
    memset(work->dest, 0xff, from);
    memset(work->dest + to, 0xff, all - to);
}

static void work_fill(struct work *work) {
    size_t size = DTYPE[work->cell->dtype].size, bytes;
    memset(work->dest, 0xff, work->shares->dest_len * size);
    unsigned char *at = work_source(work, &bytes);
    for (int i = 0; i < work->shares->sources; i++) {
        const struct piece *piece = &work->shares->source[i];
        pattern_fill(&work->pattern, piece->of, piece->block, at, piece->len);
        at += piece->len * size;
    }
}

// Rewrites one byte of each cache line with the same value, so that the source is in this rank's cache only.
static void work_refresh(struct work *work) {
    size_t bytes;
    volatile unsigned char *source = work_source(work, &bytes);
    for (size_t at = 0; at < bytes; at += 64) source[at] = source[at];
}

static uint64_t work_wrong(const struct work *work) {
    size_t size = DTYPE[work->cell->dtype].size;
    const unsigned char *at = work->dest + work->shares->result_at * size;
    uint64_t wrong = 0;
    for (int i = 0; i < work->shares->results; i++) {
        const struct piece *piece = &work->shares->result[i];
        wrong += pattern_wrong(&work->pattern, piece->of, piece->block, at, piece->len);
        at += piece->len * size;
    }
    return wrong;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Prints a row as `rankwise bench` reads it.
static void print_row(FILE *out, const char *name, const struct cell *cell, int ranks, const double *times, size_t n,
                      uint64_t wrong) {
    double *sorted = malloc(n * sizeof *sorted), sum = 0, algorithm, bus;
    if (!sorted) abort();
    memcpy(sorted, times, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    for (size_t i = 0; i < n; i++) sum += times[i];
    double median = sorted[n / 2];
    cell_bandwidth(cell, ranks, median, &algorithm, &bus);
    int barrier = cell->op == BARRIER;
    fprintf(out, MARK "{\"Row\":{\"backend\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"redop\":\"%s\",\"ranks\":%d,", name,
            OP[cell->op].name, barrier ? "none" : DTYPE[cell->dtype].name,
            cell->redop == NO_REDOP ? "none" : REDOP[cell->redop], ranks);
    fprintf(out, "\"bytes\":%llu,\"count\":%zu,\"root\":%d,\"in_place\":%s,\"alloc\":false,\"fresh\":%s,\"pin\":\"\",",
            (unsigned long long)cell->bytes, barrier ? 0 : cell_count(cell), OP[cell->op].rooted ? 0 : -1,
            cell->in_place ? "true" : "false", cell->fresh ? "true" : "false");
    fprintf(out, "\"iters\":%zu,\"min_us\":%.4f,\"mean_us\":%.4f,\"p50_us\":%.4f,\"p99_us\":%.4f,", n, sorted[0],
            sum / (double)n, median, sorted[(size_t)((double)(n - 1) * 0.99)]);
    fprintf(out, "\"algbw_gbs\":%.4f,\"busbw_gbs\":%.4f,\"wrong\":%llu,\"max_us\":%.4f,", algorithm, bus,
            (unsigned long long)wrong, sorted[n - 1]);
    size_t step = (n + MOST_SAMPLES - 1) / MOST_SAMPLES;
    fprintf(out, "\"sample_step\":%zu,\"samples_us\":[", step);
    for (size_t i = 0; i < n; i += step) fprintf(out, "%s%.4f", i ? "," : "", times[i]);
    fprintf(out, "]}}\n");
    fflush(out);
    free(sorted);
}

static size_t fitting(double wanted, size_t least, size_t most) {
    return wanted < (double)least ? least : wanted > (double)most ? most : (size_t)wanted;
}

// How many iterations fit, after so many calls; 0: a call takes too long. All ranks together, and all get the same.
static size_t agreed(struct team *team, uint64_t began, int calls, struct effort effort, double *took_ms) {
    struct page *page = team->page;
    team_barrier(team);
    *took_ms = clock_ns(&team->clock, clock_now(&team->clock) - began) / 1e6 / calls;
    if (team->rank == 0) {
        size_t most = team->most_iterations, least = most < LEAST_ITERATIONS ? most : LEAST_ITERATIONS;
        // A wrong result is told however long it takes.
        int slow = effort.slowest_ms > 0 && *took_ms > effort.slowest_ms && atomic_load(&page->wrong) == 0;
        size_t fit = effort.iterations ? (size_t)effort.iterations : fitting(effort.budget_ms / *took_ms, least, most);
        atomic_store(&page->iterations, slow ? 0 : fit < most ? fit : most);
    }
    team_barrier(team);
    return atomic_load(&page->iterations);
}

static void print_slow(FILE *out, const struct cell *cell, double call_ms) {
    char what[128];
    cell_describe(cell, what, sizeof what);
    fprintf(out, MARK "{\"Slow\":{\"what\":\"%s\",\"call_ms\":%.3f}}\n", what, call_ms);
    fflush(out);
}

// Measures one cell; all ranks together. The first one prints the row, or that a call takes too long.
static void measure(struct team *team, struct work *work, struct effort effort, const char *name, FILE *out) {
    const struct cell *cell = work->cell;
    struct page *page = team->page;
    work_fill(work);
    team_barrier(team);
    work->call(work);
    atomic_fetch_add(&page->wrong, work_wrong(work));
    team_barrier(team);

    int warm_up = cell->bytes <= 4096 ? 100 : cell->bytes <= 65536 ? 30 : cell->bytes <= 1048576 ? 8 : 2;
    uint64_t began = clock_now(&team->clock);
    double took_ms;
    size_t iterations = 1;
    for (int i = 0; i < warm_up; i++) {
        if (i == 1 && !agreed(team, began, i, effort, &took_ms)) {
            iterations = 0;
            break;
        }
        // Some libraries take long when ranks outnumber processors: a few of those calls are warm enough.
        if (i == 2) {
            team_barrier(team);
            double each_ms = clock_ns(&team->clock, clock_now(&team->clock) - began) / 1e6 / i;
            if (team->rank == 0) atomic_store(&page->iterations, fitting(WARM_UP_MS / each_ms, i, (size_t)warm_up));
            team_barrier(team);
            warm_up = (int)atomic_load(&page->iterations);
            if (i >= warm_up) break;
        }
        team_barrier(team);
        work->call(work);
    }
    if (iterations) iterations = agreed(team, began, warm_up, effort, &took_ms);
    if (!iterations) {
        if (team->rank == 0) print_slow(out, cell, took_ms);
        team_barrier(team);
        return;
    }

    // So that the check behind the timed calls is about theirs.
    work_spoil(work);
    for (size_t i = 0; i < iterations; i++) {
        if (cell->fresh) work_refresh(work);
        team_barrier(team);
        uint64_t start = clock_now(&team->clock);
        work->call(work);
        uint64_t end = clock_after(&team->clock);
        team_record(team, i, end - start);
    }
    team_barrier(team);
    double *times = NULL;
    if (team->rank == 0) {
        times = malloc(iterations * sizeof *times);
        if (!times) abort();
        for (size_t i = 0; i < iterations; i++) times[i] = team_slowest_us(team, i);
    }
    team_barrier(team);

    if (cell->in_place) {
        work_fill(work);
        team_barrier(team);
        work->call(work);
    }
    atomic_fetch_add(&page->wrong, work_wrong(work));
    team_barrier(team);
    if (team->rank == 0) print_row(out, name, cell, team->ranks, times, iterations, atomic_exchange(&page->wrong, 0));
    free(times);
    team_barrier(team);
}
