// Checks the parts that all peers share, without any MPI: the barrier, the times and the wrong elements of a toy all_reduce
// over shared memory, right and broken on purpose. `selfcheck shares` prints shares and values instead, which a test
// compares with those of `rankwise bench`.
#define _GNU_SOURCE
#include "arguments.h"
#include "cell.h"
#include "measure.h"
#include "team.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 1000 };

static int failures;

static void expect(int holds, const char *what) {
    if (!holds) fprintf(stderr, "FAILED: %s\n", what), failures++;
}

enum broken { RIGHT, WRONG_SUM, LAZY, SLOW, SLOW_AND_WRONG };

// What the toy's ranks share: their sources, and where they meet inside a call.
struct toy {
    struct team team;
    float (*sources)[COUNT];
    enum broken broken;
    int calls;
};

static void toy_all_reduce(struct work *work) {
    struct toy *toy = work->library;
    float *dest = (float *)(void *)work->dest;
    if (toy->calls++ > 0 && toy->broken == LAZY) return;
    if (toy->broken >= SLOW) usleep(20000);
    memcpy(toy->sources[toy->team.rank], work->source, sizeof *toy->sources);
    team_barrier(&toy->team);
    for (int i = 0; i < COUNT; i++) {
        dest[i] = 0;
        for (int rank = 0; rank < RANKS; rank++) dest[i] += toy->sources[rank][i];
    }
    if ((toy->broken == WRONG_SUM || toy->broken == SLOW_AND_WRONG) && toy->team.rank == 1) dest[COUNT - 1] += 1;
    team_barrier(&toy->team);
}

static void *shared(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(3);
    return at;
}

static void toy_rank(int rank, enum broken broken, struct page *outer, struct page *inner, float (*sources)[COUNT], FILE *out) {
    struct clock clock = clock_calibrated();
    struct toy toy = {{inner, clock, rank, RANKS, 1, 1, 0}, sources, broken, 0};
    struct team team = {outer, clock, rank, RANKS, 1, 50, 0};
    struct cell cell = {ALL_REDUCE, F32, SUM, 4 * COUNT, 0, 1};
    struct shares shares = cell_shares(&cell, rank, RANKS);
    struct work work = {&cell, &shares, pattern_new(F32, RANKS, SUM), buffer_new(4 * COUNT), buffer_new(4 * COUNT), &toy,
                        toy_all_reduce};
    measure(&team, &work, (struct effort){50, 0, broken >= SLOW ? 5 : 0}, "toy", out);
}

// The first rank's row, in memory that is never freed.
static char *toy_row(enum broken broken) {
    struct page *outer = shared(page_bytes(RANKS, 50)), *inner = shared(page_bytes(RANKS, 1));
    float(*sources)[COUNT] = shared(RANKS * sizeof *sources);
    char *row = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&row, &length);
    if (!out) exit(3);
    alarm(60);
    for (int rank = 1; rank < RANKS; rank++) {
        if (fork() == 0) {
            toy_rank(rank, broken, outer, inner, sources, out);
            _exit(0);
        }
    }
    toy_rank(0, broken, outer, inner, sources, out);
    fclose(out);
    for (int rank = 1, status; rank < RANKS; rank++) expect(wait(&status) > 0 && status == 0, "a rank of the toy ended well");
    return row;
}

static void check_values(void) {
    struct pattern sum = pattern_new(F32, 2, SUM), eight = pattern_new(BF16, 8, SUM), bytes = pattern_new(I8, 8, SUM);
    expect(sum.prime == 61 && eight.prime == 29 && bytes.prime == 11, "primes");
    expect(pattern_reduced(&sum, 0, 0) == 31 && pattern_reduced(&sum, 0, 8) == 56 + 26, "sums");
    unsigned char code[8];
    uint16_t half;
    encode(F16, 3, code), memcpy(&half, code, 2);
    expect(half == 0x4200, "f16 of 3");
    encode(F16, 2048, code), memcpy(&half, code, 2);
    expect(half == 0x6800, "f16 of 2048");
    encode(BF16, 5, code), memcpy(&half, code, 2);
    expect(half == 0x40a0, "bf16 of 5");
    expect(uneven(2, 2, 0) == 1 && uneven(2, 2, 1) == 3 && uneven(7, 5, 2) == 7, "uneven counts");
    unsigned char found[300];
    struct pattern moves = pattern_new(U8, 4, NO_REDOP);
    pattern_fill(&moves, 2, 1, found, sizeof found);
    expect(pattern_wrong(&moves, 2, 1, found, sizeof found) == 0, "what was filled in");
    expect(pattern_wrong(&moves, 1, 1, found, sizeof found) == sizeof found, "another rank's data");
    found[299]++;
    expect(pattern_wrong(&moves, 2, 1, found, sizeof found) == 1, "one wrong element");
}

static int all_are(const unsigned char *at, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return 0;
    return 1;
}

// What is spoilt before the timed calls is the result, never the source.
static void check_spoiling(void) {
    for (int op = 1; op < OPS; op++)
        for (int in_place = op == BROADCAST; in_place <= OP[op].in_place; in_place++) {
            struct cell cell = {(enum op)op, U8, OP[op].reduces ? SUM : NO_REDOP, 4096, in_place, 0};
            struct shares shares = cell_shares(&cell, 1, RANKS);
            struct work work = {&cell, &shares, pattern_new(U8, RANKS, cell.redop), buffer_new(shares.source_len),
                                buffer_new(shares.dest_len), NULL, NULL};
            size_t bytes;
            unsigned char *source = work_source(&work, &bytes);
            memset(source, 7, bytes);
            work_spoil(&work);
            expect(all_are(source, bytes, 7), "the source stays");
            size_t before = in_place ? shares.source_at : shares.dest_len, after = in_place ? before + bytes : before;
            expect(all_are(work.dest, before, 0xff), "the result before it is spoilt");
            expect(all_are(work.dest + after, shares.dest_len - after, 0xff), "the result behind it is spoilt");
            free(work.source), free(work.dest), shares_free(&shares);
        }
}

static void check_toy(void) {
    char *right = toy_row(RIGHT), *wrong = toy_row(WRONG_SUM), *lazy = toy_row(LAZY);
    char *slow = toy_row(SLOW), *both = toy_row(SLOW_AND_WRONG);
    expect(strstr(right, "\"wrong\":0,") && strstr(right, "\"iters\":50,"), "the toy is right");
    // Once before the timed calls and once after.
    expect(strstr(wrong, "\"wrong\":2,") != NULL, "one wrong sum is reported");
    expect(strstr(lazy, "\"wrong\":3000,") != NULL, "timed calls that do nothing are reported");
    expect(!strncmp(slow, MARK "{\"Slow\":{\"what\":\"all_reduce f32 sum\",\"call_ms\":", 62), "a slow cell is skipped");
    expect(strstr(both, "\"wrong\":2,") != NULL, "a wrong sum is reported however slow");
}

// Operation, ranks, rank, elements of the cell; then of source and result the length and some values; then the counts.
static void print_shares(void) {
    static const enum dtype TYPES[] = {F32, BF16, I8};
    for (int op = 1; op < OPS; op++)
        for (int n = 1; n <= 5; n++)
            for (int me = 0; me < n; me++)
                for (int t = 0; t < 3; t++) {
                    struct cell cell = {(enum op)op, TYPES[t], OP[op].reduces ? SUM : NO_REDOP, 0, op == BROADCAST, 1};
                    cell.bytes = 96 * DTYPE[cell.dtype].size;
                    struct shares shares = cell_shares(&cell, me, n);
                    struct pattern pattern = pattern_new(cell.dtype, n, cell.redop);
                    printf("%s %s %d %d", OP[op].name, DTYPE[cell.dtype].name, n, me);
                    for (int side = 0; side < 2; side++) {
                        const struct piece *pieces = side ? shares.result : shares.source;
                        for (int i = 0; i < (side ? shares.results : shares.sources); i++) {
                            const struct piece *piece = &pieces[i];
                            uint64_t value = piece->of < 0 ? pattern_reduced(&pattern, (uint64_t)piece->block, 5)
                                                           : pattern_value(&pattern, (uint64_t)piece->of, (uint64_t)piece->block, 5);
                            printf(" %s%d.%d.%zu=%llu", side ? "r" : "s", piece->of, piece->block, piece->len,
                                   (unsigned long long)value);
                        }
                    }
                    printf("\n");
                    shares_free(&shares);
                }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "shares")) {
        print_shares();
        return 0;
    }
    check_values();
    check_spoiling();
    check_toy();
    if (failures == 0) puts("the shared parts of the peers are right");
    return failures != 0;
}
