// The command line: what `rankwise bench --peers` appends to the command of a peer.
#pragma once
#include "cell.h"
#include "measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 4096, MOST_CPUS = 4096 };

struct arguments {
    const char *name;
    int op[OPS], ops, dtype[DTYPES], dtypes, redop[REDOPS], redops;
    char unknown[512];  // names this program does not know, which it reports as skipped
    uint64_t size[MOST_SIZES];
    int sizes;
    int cpu[MOST_CPUS], cpus;  // those the ranks may use
    int processors, ranks;     // how many CPUs there are for them; ranks that must have been started
    struct effort effort;
    int warm, in_place, pin, version;
    unsigned silence_s;  // longest time for one cell
};

static const char *op_name(int op) { return OP[op].name; }
static const char *dtype_name(int dtype) { return DTYPE[dtype].name; }
static const char *redop_name(int redop) { return REDOP[redop]; }

// Places of the names of a comma-separated list in a table; unknown ones are noted.
static void names(char *list, const char *(*known)(int), int all, int *found, int *n, char *unknown, size_t room) {
    *n = 0;
    for (char *rest = list, *word; (word = strsep(&rest, ","));) {
        int place = 0, before = 0;
        while (place < all && strcmp(known(place), word) != 0) place++;
        for (int i = 0; i < *n; i++) before |= found[i] == place;
        if (place == all) snprintf(unknown + strlen(unknown), room - strlen(unknown), "%s%s", *unknown ? "," : "", word);
        else if (!before) found[(*n)++] = place;
    }
}

static int whole(const char *text, unsigned long long most, unsigned long long *value) {
    char *end;
    if (*text < '0' || *text > '9') return 0;
    *value = strtoull(text, &end, 10);
    return *end == 0 && *value <= most;
}

// 0, or 2 after saying what is wrong.
static int argument(struct arguments *args, const char *key, char *value) {
    unsigned long long number = 0;
    size_t room = sizeof args->unknown;
    int right = 1;
    if (!strcmp(key, "name")) args->name = value;
    else if (!strcmp(key, "op")) names(value, op_name, OPS, args->op, &args->ops, args->unknown, room);
    else if (!strcmp(key, "dtype")) names(value, dtype_name, DTYPES, args->dtype, &args->dtypes, args->unknown, room);
    else if (!strcmp(key, "redop")) names(value, redop_name, REDOPS, args->redop, &args->redops, args->unknown, room);
    else if (!strcmp(key, "iters")) {
        right = whole(value, 1000000, &number) && number > 0;
        args->effort.iterations = (long)number;
    } else if (!strcmp(key, "budget-ms") || !strcmp(key, "slowest-ms")) {
        double ms = strtod(value, NULL);
        right = ms > 0;
        *(*key == 'b' ? &args->effort.budget_ms : &args->effort.slowest_ms) = ms;
    } else if (!strcmp(key, "silence-s")) {
        right = whole(value, 10000000, &number) && number > 0;
        args->silence_s = (unsigned)number;
    } else if (!strcmp(key, "processors") || !strcmp(key, "ranks")) {
        right = whole(value, 1000000, &number) && number > 0;
        *(*key == 'r' ? &args->ranks : &args->processors) = (int)number;
    } else if (!strcmp(key, "size")) {
        args->sizes = 0;
        for (char *rest = value, *word; right && (word = strsep(&rest, ","));) {
            right = args->sizes < MOST_SIZES && whole(word, 1ull << 46, &number);
            if (right) args->size[args->sizes++] = number;
        }
    } else if (!strcmp(key, "cpus")) {
        args->cpus = 0;
        for (char *rest = value, *word; right && (word = strsep(&rest, ","));) {
            right = args->cpus < MOST_CPUS && whole(word, 1 << 20, &number);
            if (right) args->cpu[args->cpus++] = (int)number;
        }
    } else {
        fprintf(stderr, "unknown option --%s\n", key);
        return 2;
    }
    if (!right) fprintf(stderr, "--%s=%s is no valid value\n", key, value);
    return right ? 0 : 2;
}

static int arguments_read(struct arguments *args, int argc, char **argv) {
    *args = (struct arguments){.name = "peer", .effort = {0, 300.0, 0}, .redop = {SUM}, .redops = 1, .silence_s = 600};
    for (int i = 1; i < argc; i++) {
        char *word = argv[i], *value = strchr(word, '=');
        if (!strcmp(word, "--warm")) args->warm = 1;
        else if (!strcmp(word, "--in-place")) args->in_place = 1;
        else if (!strcmp(word, "--pin")) args->pin = 1;
        else if (!strcmp(word, "--version")) args->version = 1;
        else if (!strncmp(word, "--", 2) && value) {
            *value = 0;
            int code = argument(args, word + 2, value + 1);
            if (code) return code;
        } else {
            fprintf(stderr, "unexpected argument %s; options are --NAME=VALUE\n", word);
            return 2;
        }
    }
    return 0;
}

// Calls `each` for every cell, in the order of `rankwise bench`.
static void arguments_cells(const struct arguments *args, void (*each)(void *, const struct cell *), void *context) {
    for (int o = 0; o < args->ops; o++) {
        struct cell cell = {.op = (enum op)args->op[o], .dtype = U8, .redop = NO_REDOP, .fresh = 1};
        if (cell.op == BARRIER) {
            each(context, &cell);
            continue;
        }
        int redops = OP[cell.op].reduces ? args->redops : 1;
        for (int d = 0; d < args->dtypes; d++)
            for (int r = 0; r < redops; r++)
                for (int warm = 0; warm <= args->warm; warm++)
                    for (int s = 0; s < args->sizes; s++)
                        for (int in_place = 0; in_place <= 1; in_place++) {
                            int only = cell.op == BROADCAST;
                            if (in_place ? !(OP[cell.op].in_place && (args->in_place || only)) : only) continue;
                            cell.dtype = (enum dtype)args->dtype[d];
                            cell.redop = OP[cell.op].reduces ? (enum redop)args->redop[r] : NO_REDOP;
                            cell.bytes = args->size[s];
                            cell.fresh = !warm;
                            cell.in_place = in_place;
                            each(context, &cell);
                        }
    }
}
