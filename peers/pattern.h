// The values that ranks contribute and what must come out: small whole numbers, exact in every type, the same ones that
// `rankwise bench` uses (crates/cli/src/bench/pattern.rs says why).
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum dtype { I8, U8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, DTYPES };
enum redop { NO_REDOP = -1, SUM, PROD, MIN, MAX, BAND, BOR, BXOR, REDOPS };

static const struct {
    const char *name;
    size_t size;
    uint64_t limit;  // every whole number up to here is exact
    int whole;
} DTYPE[DTYPES] = {
    [I8] = {"i8", 1, 127, 1},          [U8] = {"u8", 1, 255, 1},          [I16] = {"i16", 2, 32767, 1},
    [U16] = {"u16", 2, 65535, 1},      [I32] = {"i32", 4, 1 << 24, 1},    [U32] = {"u32", 4, 1 << 24, 1},
    [I64] = {"i64", 8, 1 << 24, 1},    [U64] = {"u64", 8, 1 << 24, 1},    [F16] = {"f16", 2, 2048, 0},
    [BF16] = {"bf16", 2, 256, 0},      [F32] = {"f32", 4, 1 << 24, 0},    [F64] = {"f64", 8, 1 << 24, 0},
};

static const char *const REDOP[REDOPS] = {"sum", "prod", "min", "max", "band", "bor", "bxor"};

struct pattern {
    uint64_t ranks, prime, stride;
    enum dtype dtype;
    enum redop redop;
};

static uint64_t largest_prime(uint64_t most, uint64_t ranks) {
    static const uint64_t PRIMES[] = {61, 59, 53, 47, 43, 41, 37, 29, 23, 19, 17, 11, 5, 3};
    for (size_t i = 0; i < sizeof PRIMES / sizeof *PRIMES; i++)
        if (PRIMES[i] <= most + 1 && (ranks == 0 || ranks % PRIMES[i] != 0)) return PRIMES[i];
    return 2;
}

static struct pattern pattern_new(enum dtype dtype, int ranks, enum redop redop) {
    struct pattern pattern = {(uint64_t)ranks, 1, 1, dtype, redop};
    uint64_t limit = DTYPE[dtype].limit, n = pattern.ranks, part = limit / 4 ? limit / 4 : 1;
    if (redop == SUM) {
        for (pattern.stride = (n + part - 1) / part;; pattern.stride++) {
            uint64_t contributions = (n + pattern.stride - 1) / pattern.stride;
            pattern.prime = largest_prime(limit / contributions, contributions);
            if (contributions % pattern.prime != 0) break;
        }
    } else if (redop != PROD) {
        pattern.prime = largest_prime(limit, 0);
    }
    return pattern;
}

static size_t pattern_period(const struct pattern *pattern) {
    return pattern->prime * pattern->stride * (pattern->redop == PROD ? 6 * pattern->ranks : 1);
}

// What a rank contributes to a block at a position.
static uint64_t pattern_value(const struct pattern *pattern, uint64_t rank, uint64_t block, uint64_t i) {
    if (pattern->redop == SUM && (rank + i) % pattern->stride != 0) return 0;
    if (pattern->redop == PROD) {
        uint64_t one = (rank + i) % pattern->ranks == 0 ? 1 + (i + block) % 3 : 1;
        uint64_t other = (rank + 2 * i + block) % pattern->ranks == 0 ? 1 + (i + block) % 2 : 1;
        return one * other;
    }
    return (31 * rank + 13 * block + 7 * i) % pattern->prime;
}

static uint64_t pattern_reduced(const struct pattern *pattern, uint64_t block, uint64_t i) {
    uint64_t result = pattern_value(pattern, 0, block, i);
    for (uint64_t rank = 1; rank < pattern->ranks; rank++) {
        uint64_t value = pattern_value(pattern, rank, block, i);
        switch (pattern->redop) {
        case PROD: result *= value; break;
        case MIN: result = value < result ? value : result; break;
        case MAX: result = value > result ? value : result; break;
        case BAND: result &= value; break;
        case BOR: result |= value; break;
        case BXOR: result ^= value; break;
        default: result += value;
        }
    }
    return result;
}

static void encode(enum dtype dtype, uint64_t value, unsigned char *out) {
    float single = (float)value;
    double wide = (double)value;
    uint32_t bits;
    uint16_t half = 0;
    switch (dtype) {
    case F32: memcpy(out, &single, 4); return;
    case F64: memcpy(out, &wide, 8); return;
    case BF16:
        memcpy(&bits, &single, 4);
        half = (uint16_t)(bits >> 16);
        memcpy(out, &half, 2);
        return;
    case F16:
        if (value) {
            unsigned exponent = 63u - (unsigned)__builtin_clzll(value);
            uint64_t fraction = exponent <= 10 ? value << (10 - exponent) : value >> (exponent - 10);
            half = (uint16_t)((exponent + 15) << 10 | (fraction & 0x3ff));
        }
        memcpy(out, &half, 2);
        return;
    default:
        for (size_t byte = 0; byte < DTYPE[dtype].size; byte++) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            out[byte] = (unsigned char)(value >> (8 * byte));
#else
            out[DTYPE[dtype].size - 1 - byte] = (unsigned char)(value >> (8 * byte));
#endif
        }
    }
}

// One period of a rank's values, or of the reduction when `of` is -1. The caller frees it; null without memory.
static unsigned char *pattern_encoded(const struct pattern *pattern, int of, int block) {
    size_t period = pattern_period(pattern), size = DTYPE[pattern->dtype].size;
    unsigned char *values = malloc(period * size);
    for (size_t i = 0; values && i < period; i++) {
        uint64_t value = of < 0 ? pattern_reduced(pattern, (uint64_t)block, i)
                                : pattern_value(pattern, (uint64_t)of, (uint64_t)block, i);
        encode(pattern->dtype, value, values + i * size);
    }
    return values;
}

static void pattern_fill(const struct pattern *pattern, int of, int block, unsigned char *out, size_t len) {
    size_t size = DTYPE[pattern->dtype].size, period = pattern_period(pattern) * size;
    unsigned char *values = pattern_encoded(pattern, of, block);
    if (!values) abort();
    for (size_t at = 0, bytes = len * size; at < bytes; at += period)
        memcpy(out + at, values, bytes - at < period ? bytes - at : period);
    free(values);
}

// Elements that differ from what must be there.
static uint64_t pattern_wrong(const struct pattern *pattern, int of, int block, const unsigned char *found, size_t len) {
    size_t size = DTYPE[pattern->dtype].size, period = pattern_period(pattern) * size;
    unsigned char *values = pattern_encoded(pattern, of, block);
    uint64_t wrong = 0;
    if (!values) abort();
    for (size_t at = 0, bytes = len * size; at < bytes; at += period) {
        size_t here = bytes - at < period ? bytes - at : period;
        if (memcmp(found + at, values, here) == 0) continue;
        for (size_t i = 0; i < here; i += size) wrong += memcmp(found + at + i, values + i, size) != 0;
    }
    free(values);
    return wrong;
}
