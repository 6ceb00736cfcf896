// The collectives of an MPI library, measured as `rankwise bench` measures its backends. One source for every MPI; it is
// started by the library's own launcher, and its first rank prints the lines that `rankwise bench --peers` reads.
#define _GNU_SOURCE
#include "arguments.h"
#include "cell.h"
#include "measure.h"
#include "team.h"
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

struct library {
    MPI_Datatype type;
    MPI_Op op;
    int count;
};

struct run {
    const struct arguments *args;
    struct team team;
};

static int rank, ranks;

static void fail(const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s failed: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

static void out_of_time(int signal) {
    static const char text[] = "a rank of the peer ran out of time\n";
    (void)signal;
    if (write(2, text, sizeof text - 1) < 0) _exit(6);
    _exit(5);
}

static void pin(const struct arguments *args, int me) {
    if (!args->pin || args->cpus == 0) return;
    int cpu = args->cpu[me % args->cpus];
    cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    if (!set) return;
    CPU_ZERO_S(bytes, set);
    CPU_SET_S((size_t)cpu, bytes, set);
    if (sched_setaffinity(0, bytes, set) != 0) fprintf(stderr, "rank %d: cannot be bound to CPU %d\n", me, cpu);
    CPU_FREE(set);
}

// Before MPI says it, so that memory of MPI_Init is where the rank will be.
static int rank_of_environment(void) {
    static const char *const NAMES[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const char *value = getenv(NAMES[i]);
        if (value) return atoi(value);
    }
    return 0;
}

static MPI_Datatype type_of(enum dtype dtype) {
    switch (dtype) {
    case I8: return MPI_INT8_T;
    case U8: return MPI_UINT8_T;
    case I16: return MPI_INT16_T;
    case U16: return MPI_UINT16_T;
    case I32: return MPI_INT32_T;
    case U32: return MPI_UINT32_T;
    case I64: return MPI_INT64_T;
    case U64: return MPI_UINT64_T;
    case F32: return MPI_FLOAT;
    case F64: return MPI_DOUBLE;
// MPICH 4.0 has the name, and ends the process when it is used.
#if defined(MPIX_C_FLOAT16) && !(defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40100000 && !defined(I_MPI_NUMVERSION))
    case F16: return MPIX_C_FLOAT16;
#elif defined(OMPI_HAVE_MPI_EXT_SHORTFLOAT)
    case F16: return MPIX_SHORT_FLOAT;
#endif
#if defined(MPIX_BFLOAT16)
    case BF16: return MPIX_BFLOAT16;
#endif
    default: return MPI_DATATYPE_NULL;
    }
}

static MPI_Op op_of(enum redop redop) {
    switch (redop) {
    case PROD: return MPI_PROD;
    case MIN: return MPI_MIN;
    case MAX: return MPI_MAX;
    case BAND: return MPI_BAND;
    case BOR: return MPI_BOR;
    case BXOR: return MPI_BXOR;
    default: return MPI_SUM;
    }
}

// Why this library cannot do the cell; null when it can. All ranks find the same.
static const char *unsupported(const struct cell *cell) {
    static char text[MPI_MAX_ERROR_STRING + 64];
    size_t size = DTYPE[cell->dtype].size;
    if (cell->op == BARRIER) return NULL;
    if (cell->bytes % size != 0) {
        snprintf(text, sizeof text, "%llu bytes are no whole number of %s", (unsigned long long)cell->bytes,
                 DTYPE[cell->dtype].name);
        return text;
    }
    if (cell->bytes / size > (uint64_t)INT_MAX / (unsigned)ranks) return "MPI counts elements in an int";
    if (cell->op == SEND_RECV && ranks == 1) return "a world of one has nobody to send to";
    if (cell->redop == NO_REDOP) return NULL;
    if (type_of(cell->dtype) == MPI_DATATYPE_NULL) return "this MPI has no such type";
    _Alignas(16) unsigned char two[16], one[16];
    encode(cell->dtype, 2, two);
    encode(cell->dtype, 1, one);
    int code = MPI_Reduce_local(two, one, 1, type_of(cell->dtype), op_of(cell->redop));
    if (code == MPI_SUCCESS) return NULL;
    int length = snprintf(text, sizeof text, "this MPI: "), more = 0;
    MPI_Error_string(code, text + length, &more);
    for (char *at = text; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ') *at = ' ';
    return text;
}

static void call(struct work *work) {
    const struct shares *s = work->shares;
    const struct library *library = work->library;
    void *source = work->source, *dest = work->dest;
    MPI_Datatype type = library->type;
    MPI_Op op = library->op;
    int count = library->count, in_place = work->cell->in_place, code;
    switch (work->cell->op) {
    case BARRIER: code = MPI_Barrier(MPI_COMM_WORLD); break;
    case ALL_REDUCE:
        code = MPI_Allreduce(in_place ? MPI_IN_PLACE : source, dest, count, type, op, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        code = MPI_Allgather(in_place ? MPI_IN_PLACE : source, count, type, dest, count, type, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        code = MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : source, dest, count, type, op, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL: code = MPI_Alltoall(source, count, type, dest, count, type, MPI_COMM_WORLD); break;
    case BROADCAST: code = MPI_Bcast(dest, count, type, 0, MPI_COMM_WORLD); break;
    case REDUCE: code = MPI_Reduce(source, dest, count, type, op, 0, MPI_COMM_WORLD); break;
    case GATHER: code = MPI_Gather(source, count, type, dest, count, type, 0, MPI_COMM_WORLD); break;
    case SCATTER: code = MPI_Scatter(source, count, type, dest, count, type, 0, MPI_COMM_WORLD); break;
    case SEND_RECV:
        code = MPI_Sendrecv(source, count, type, (rank + 1) % ranks, 0, dest, count, type, (rank + ranks - 1) % ranks, 0,
                            MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case ALL_GATHER_V:
    case TOKEN_ALL_GATHER:
        code = MPI_Allgatherv(source, s->counts[rank], type, dest, s->counts, s->displacements, type, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER_V:
    case TOKEN_REDUCE_SCATTER: code = MPI_Reduce_scatter(source, dest, s->counts, type, op, MPI_COMM_WORLD); break;
    case ALL_TO_ALL_V:
        code = MPI_Alltoallv(source, s->counts, s->displacements, type, dest, s->counts, s->displacements, type,
                             MPI_COMM_WORLD);
        break;
    default: code = MPI_ERR_ARG;
    }
    if (code != MPI_SUCCESS) fail(OP[work->cell->op].name, code);
}

static void each(void *context, const struct cell *cell) {
    struct run *run = context;
    const char *reason = unsupported(cell);
    if (reason) {
        char what[128];
        cell_describe(cell, what, sizeof what);
        if (rank == 0) printf(MARK "{\"Skipped\":{\"what\":\"%s\",\"reason\":\"%s\"}}\n", what, reason);
        fflush(stdout);
        return;
    }
    alarm(run->args->silence_s);
    struct shares shares = cell_shares(cell, rank, ranks);
    int half = cell->dtype == F16 || cell->dtype == BF16;
    // What only moves needs no type of its own.
    MPI_Datatype type = half && cell->redop == NO_REDOP ? MPI_UINT16_T : type_of(cell->dtype);
    struct library library = {type, op_of(cell->redop), (int)cell_count(cell)};
    size_t size = DTYPE[cell->dtype].size;
    struct work work = {
        .cell = cell,
        .shares = &shares,
        .pattern = pattern_new(cell->dtype, ranks, cell->redop),
        .source = buffer_new(cell->in_place ? 0 : shares.source_len * size),
        .dest = buffer_new(shares.dest_len * size),
        .library = &library,
        .call = call,
    };
    if (!work.source || !work.dest) {
        fprintf(stderr, "rank %d: no memory for %llu bytes\n", rank, (unsigned long long)cell->bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    measure(&run->team, &work, run->args->effort, run->args->name, stdout);
    free(work.source);
    free(work.dest);
    shares_free(&shares);
}

// Maps the first rank's page on all ranks.
static struct page *meet(size_t iterations) {
    char path[64] = "";
    int fd = rank == 0 ? page_create(ranks, iterations) : -1;
    if (fd >= 0) snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank != 0 && *path) fd = open(path, O_RDWR | O_CLOEXEC);
    struct page *page = fd >= 0 ? page_map(fd, ranks, iterations) : NULL;
    if (!page) {
        fprintf(stderr, "rank %d: the page of the benchmark cannot be mapped; all ranks must be on one host\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    close(fd);
    return page;
}

static void introduce(const struct clock *clock) {
    int own = (int)getpid();
    int *pids = calloc((size_t)ranks, sizeof *pids);
    char host[256] = "?";
    if (!pids) abort();
    gethostname(host, sizeof host - 1);
    MPI_Gather(&own, 1, MPI_INT, pids, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf(MARK "{\"Ranks\":{\"ranks\":[");
        for (int i = 0; i < ranks; i++)
            printf("%s{\"rank\":%d,\"pid\":%d,\"host\":\"%s\",\"cpus\":\"?\"}", i ? "," : "", i, pids[i], host);
        if (clock->counter) printf("],\"clock\":\"processor counter at %.0f MHz\"}}\n", clock->ticks_per_ns * 1e3);
        else printf("],\"clock\":\"CLOCK_MONOTONIC_RAW\"}}\n");
        fflush(stdout);
    }
    free(pids);
}

int main(int argc, char **argv) {
    struct run run;
    static struct arguments args;
    int code = arguments_read(&args, argc, argv);
    if (code) return code;
    // No rank outlives its parent, or a cell that never ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGALRM, out_of_time);
    alarm(args.silence_s);
    pin(&args, rank_of_environment());
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (args.version) {
        char text[MPI_MAX_LIBRARY_VERSION_STRING];
        int length = 0;
        MPI_Get_library_version(text, &length);
        if (rank == 0) printf("%s\n", text);
        return MPI_Finalize();
    }
    pin(&args, rank);
    size_t iterations = args.effort.iterations ? (size_t)args.effort.iterations : MOST_ITERATIONS;
    int processors = args.processors ? args.processors : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (args.ranks && args.ranks != ranks) {
        if (rank == 0) fprintf(stderr, "the launcher started worlds of %d instead of %d\n", ranks, args.ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    run.args = &args;
    run.team = (struct team){meet(iterations), clock_calibrated(), rank, ranks, ranks > processors, iterations, 0};
    introduce(&run.team.clock);
    if (*args.unknown && rank == 0) {
        printf(MARK "{\"Skipped\":{\"what\":\"%s\",\"reason\":\"this program does not know it\"}}\n", args.unknown);
        fflush(stdout);
    }
    arguments_cells(&args, each, &run);
    alarm(60);
    if (rank == 0) {
        printf(MARK "{\"Done\":{}}\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
