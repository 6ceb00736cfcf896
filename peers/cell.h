// One measurement: which operation on how much of what, and which elements each rank gives and gets. The same shares as
// `rankwise bench` has (crates/cli/src/bench/cell.rs), except that MPI puts an in-place reduce_scatter's result first.
#pragma once
#include "pattern.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum op {
    BARRIER, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER, SEND_RECV,
    ALL_GATHER_V, REDUCE_SCATTER_V, ALL_TO_ALL_V, TOKEN_ALL_GATHER, TOKEN_REDUCE_SCATTER, OPS
};

static const struct {
    const char *name;
    int reduces, rooted, in_place;
} OP[OPS] = {
    [BARRIER] = {"barrier", 0, 0, 0},
    [ALL_REDUCE] = {"all_reduce", 1, 0, 1},
    [ALL_GATHER] = {"all_gather", 0, 0, 1},
    [REDUCE_SCATTER] = {"reduce_scatter", 1, 0, 1},
    [ALL_TO_ALL] = {"all_to_all", 0, 0, 0},
    [BROADCAST] = {"broadcast", 0, 1, 1},
    [REDUCE] = {"reduce", 1, 1, 0},
    [GATHER] = {"gather", 0, 1, 0},
    [SCATTER] = {"scatter", 0, 1, 0},
    [SEND_RECV] = {"send_recv", 0, 0, 0},
    [ALL_GATHER_V] = {"all_gather_v", 0, 0, 0},
    [REDUCE_SCATTER_V] = {"reduce_scatter_v", 1, 0, 0},
    [ALL_TO_ALL_V] = {"all_to_all_v", 0, 0, 0},
    [TOKEN_ALL_GATHER] = {"token_all_gather", 0, 0, 0},
    [TOKEN_REDUCE_SCATTER] = {"token_reduce_scatter", 1, 0, 0},
};

struct cell {
    enum op op;
    enum dtype dtype;
    enum redop redop;
    uint64_t bytes;
    int in_place, fresh;
};

// A run of elements: whose they are (-1: the reduction of all), which block of theirs, and how many.
struct piece {
    int of, block;
    size_t len;
};

struct shares {
    struct piece *source, *result;
    int sources, results;
    size_t source_len, dest_len;     // elements; in place there is only the second buffer
    size_t source_at, result_at;     // in the destination, when in place
    int *counts, *displacements;     // of the forms with counts, in elements
};

static size_t cell_count(const struct cell *cell) { return cell->bytes / DTYPE[cell->dtype].size; }

// A power of two of elements that leaves at least eight rows a rank where it can.
static size_t row_width(size_t count) {
    size_t width = 1;
    while (width < 4096 && count % (width * 2) == 0 && count / (width * 2) >= 8) width *= 2;
    return width;
}

// Rank `rank`'s count: from half the mean to one and a half, with the total of even ones.
static size_t uneven(size_t mean, int n, int rank) {
    int low = rank < n / 2 ? rank : n - 1 - rank;
    if (low >= n / 2) return mean;
    size_t less = (size_t)((unsigned __int128)mean * (unsigned)(n - 1 - 2 * low) / (2u * (unsigned)(n - 1)));
    return rank < n / 2 ? mean - less : mean + less;
}

static void put(struct piece *pieces, int *used, int of, int block, size_t len) {
    pieces[(*used)++] = (struct piece){of, block, len};
}

static struct shares cell_shares(const struct cell *cell, int me, int n) {
    struct shares shares = {0};
    size_t count = cell_count(cell), room = (size_t)n;
    int token = cell->op == TOKEN_ALL_GATHER || cell->op == TOKEN_REDUCE_SCATTER;
    size_t width = token ? row_width(count) : 1;
    size_t mine = uneven(count / width, n, me) * width;
    shares.source = calloc(room, sizeof *shares.source);
    shares.result = calloc(room, sizeof *shares.result);
    shares.counts = calloc(room, sizeof *shares.counts);
    shares.displacements = calloc(room, sizeof *shares.displacements);
    if (!shares.source || !shares.result || !shares.counts || !shares.displacements) abort();
    for (int rank = 0, at = 0; rank < n; rank++) {
        // Between two ranks of all_to_all_v by the sum of both, so that rows and columns have the same total.
        int whose = cell->op == ALL_TO_ALL_V ? (me + rank) % n : rank;
        shares.counts[rank] = (int)(uneven(count / width, n, whose) * width);
        shares.displacements[rank] = at;
        at += shares.counts[rank];
    }
#define FROM_ALL(block, len) for (int r = 0; r < n; r++) put(shares.result, &shares.results, r, block, len)
#define TO_ALL(len) for (int r = 0; r < n; r++) put(shares.source, &shares.sources, me, r, len)
#define OWN(len) put(shares.source, &shares.sources, me, 0, len)
#define RESULT(of, block, len) put(shares.result, &shares.results, of, block, len)
    switch (cell->op) {
    case ALL_REDUCE: OWN(count); RESULT(-1, 0, count); break;
    case ALL_GATHER: OWN(count); FROM_ALL(0, count); break;
    case REDUCE_SCATTER: TO_ALL(count); RESULT(-1, me, count); break;
    case ALL_TO_ALL: TO_ALL(count); FROM_ALL(me, count); break;
    case BROADCAST:
        if (me == 0) OWN(count);
        RESULT(0, 0, count);
        break;
    case REDUCE:
        OWN(count);
        if (me == 0) RESULT(-1, 0, count);
        break;
    case GATHER:
        OWN(count);
        if (me == 0) FROM_ALL(0, count);
        break;
    case SCATTER:
        if (me == 0) TO_ALL(count);
        RESULT(0, me, count);
        break;
    case SEND_RECV: OWN(count); RESULT((me + n - 1) % n, 0, count); break;
    case ALL_GATHER_V:
    case TOKEN_ALL_GATHER: OWN(mine); FROM_ALL(0, (size_t)shares.counts[r]); break;
    case REDUCE_SCATTER_V:
    case TOKEN_REDUCE_SCATTER: TO_ALL((size_t)shares.counts[r]); RESULT(-1, me, mine); break;
    case ALL_TO_ALL_V: TO_ALL((size_t)shares.counts[r]); FROM_ALL(me, (size_t)shares.counts[r]); break;
    default: break;
    }
    for (int i = 0; i < shares.sources; i++) shares.source_len += shares.source[i].len;
    for (int i = 0; i < shares.results; i++) shares.dest_len += shares.result[i].len;
    if (cell->in_place && shares.source_len > shares.dest_len) shares.dest_len = shares.source_len;
    if (cell->in_place && cell->op == ALL_GATHER) shares.source_at = (size_t)me * count;
    return shares;
}

static void shares_free(struct shares *shares) {
    free(shares->source);
    free(shares->result);
    free(shares->counts);
    free(shares->displacements);
}

// The cell in words, without its size.
static void cell_describe(const struct cell *cell, char *out, size_t room) {
    int barrier = cell->op == BARRIER;
    snprintf(out, room, "%s%s%s%s%s%s", OP[cell->op].name, barrier ? "" : " ", barrier ? "" : DTYPE[cell->dtype].name,
             cell->redop == NO_REDOP ? "" : " ", cell->redop == NO_REDOP ? "" : REDOP[cell->redop],
             cell->in_place && cell->op != BROADCAST ? " in place" : "");
}

// Algorithm and bus bandwidth in GB/s, as nccl-tests counts them.
static void cell_bandwidth(const struct cell *cell, int n, double us, double *algorithm, double *bus) {
    double bytes = (double)cell->bytes, factor = (n - 1.0) / n;
    switch (cell->op) {
    case BARRIER: bytes = 0; break;
    case ALL_REDUCE: factor *= 2; break;
    case REDUCE:
    case BROADCAST:
    case SEND_RECV: factor = 1; break;
    default: bytes *= n;
    }
    *algorithm = us > 0 ? bytes / us / 1e3 : 0;
    *bus = *algorithm * factor;
}
