/* The few things that C has and Cython has not: atomics, cache-line flushes, the SIGBUS handler.
 *
 * Included by verbs.pyx alone, since the table of mappings below must exist once in a process.
 */
#ifndef LIMPET_NATIVE_H
#define LIMPET_NATIVE_H

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Where a class overrides a method that has defaults, Cython's wrapper for Python calls it with the
 * subclass's own struct of defaults, which is laid out as the base class's. */
#pragma GCC diagnostic ignored "-Wincompatible-pointer-types"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "limpet's layouts are little-endian"
#endif

typedef uint64_t limpet_word;

/* layout.py asserts the same */
#define LIMPET_OFFSET_MASK ((UINT64_C(1) << 40) - 1)
#define LIMPET_CONTROL (UINT64_C(255) << 40)
#define LIMPET_FORMER (UINT64_C(1) << 62) /* states.py */
#define LIMPET_ADDRESS_MASK ((UINT64_C(1) << 48) - 16) /* words.py */

/* ---- atomics on 8 aligned bytes ------------------------------------------------------------ */

static inline limpet_word limpet_load(const void *p) {
    return __atomic_load_n((const limpet_word *)p, __ATOMIC_ACQUIRE);
}

static inline void limpet_store(void *p, limpet_word value) {
    __atomic_store_n((limpet_word *)p, value, __ATOMIC_RELEASE);
}

/* ORDER: no access moves across an atomic, in either direction, nor across a CAS that fails. On
 * x86-64 a locked instruction is such a barrier. Elsewhere SEQ_CST is less: with a load-exclusive
 * and a store-exclusive of ARM a later plain load may pass the store, so a client could read a link
 * before its pin is visible; and a CAS that fails stores nothing. */
#if defined(__x86_64__)
#define limpet_barrier()
#else
#define limpet_barrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

static inline limpet_word limpet_swap(void *p, limpet_word value) {
    limpet_barrier();
    value = __atomic_exchange_n((limpet_word *)p, value, __ATOMIC_SEQ_CST);
    limpet_barrier();
    return value;
}

static inline limpet_word limpet_cas(void *p, limpet_word expected, limpet_word desired) {
    limpet_barrier();
    __atomic_compare_exchange_n((limpet_word *)p, &expected, desired, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    limpet_barrier();
    return expected;
}

static inline limpet_word limpet_faa(void *p, limpet_word delta) {
    limpet_barrier();
    delta = __atomic_fetch_add((limpet_word *)p, delta, __ATOMIC_SEQ_CST);
    limpet_barrier();
    return delta;
}

static inline limpet_word limpet_fetch_or(void *p, limpet_word bits) {
    limpet_barrier();
    bits = __atomic_fetch_or((limpet_word *)p, bits, __ATOMIC_SEQ_CST);
    limpet_barrier();
    return bits;
}

/* Without a result each is one instruction, and no loop. */
static inline void limpet_set(void *p, limpet_word bits) {
    limpet_barrier();
    (void)__atomic_fetch_or((limpet_word *)p, bits, __ATOMIC_SEQ_CST);
    limpet_barrier();
}

static inline void limpet_clear(void *p, limpet_word bits) {
    limpet_barrier();
    (void)__atomic_fetch_and((limpet_word *)p, ~bits, __ATOMIC_SEQ_CST);
    limpet_barrier();
}

static inline limpet_word limpet_mcas(void *p, limpet_word compare, limpet_word swap,
                                      limpet_word compare_mask, limpet_word swap_mask) {
    limpet_word old = limpet_load(p);
    while (((old ^ compare) & compare_mask) == 0) {
        limpet_word seen = limpet_cas(p, old, (old & ~swap_mask) | (swap & swap_mask));
        if (seen == old)
            return old;
        old = seen;
    }
    /* ORDER: a masked CAS that fails orders what follows it just as one that succeeds. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return old;
}

/* ---- copies: whole aligned words at small sizes, memcpy above ------------------------------- */

#define LIMPET_WORDWISE 64
#define LIMPET_LINE 64

/* Whether so many bytes go by whole words, if they are aligned in memory that others use. Off
 * x86-64 all do: a memcpy may align itself to the private side, and split each word of the other. */
#if defined(__x86_64__)
#define LIMPET_BY_WORDS(n) ((n) <= 8 * LIMPET_WORDWISE)
#else
#define LIMPET_BY_WORDS(n) 1
#endif

/* Two words at once. Each of them is whole: no CPU that we know takes eight aligned bytes of a vector
 * apart. `volatile`, so that each is accessed once and no loop becomes a call of memcpy. */
typedef long long limpet_pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef limpet_word limpet_loose __attribute__((aligned(1), may_alias));
typedef long long limpet_loose_pair __attribute__((vector_size(16), aligned(1), may_alias));

/* ORDER: two words are read one after the other: a lock before the pointer beside it. A load of a
 * pair says nothing of the order of its words. */
static inline void limpet_two_out(void *to, const void *from) {
    limpet_word first = limpet_load(from);
    limpet_word second = limpet_load((const limpet_word *)from + 1);
    ((limpet_loose *)to)[0] = first;
    ((limpet_loose *)to)[1] = second;
}

/* Whole aligned words out of memory that others write. */
static inline void limpet_words_out(void *to, const void *from, size_t words) {
    if (words == 2) {
        limpet_two_out(to, from);
        return;
    }
    const char *end = (const char *)from + 8 * (words & ~(size_t)1);
#if !defined(__x86_64__)
    /* ORDER: the first two words before the others: the sequence of a row before its header line.
     * On x86-64 loads stay in order. */
    if (words > 2) {
        limpet_two_out(to, from);
        from = (const char *)from + 16;
        to = (char *)to + 16;
    }
#endif
#pragma GCC unroll 4
    for (; (const char *)from != end; from = (const char *)from + 16, to = (char *)to + 16)
        *(limpet_loose_pair *)to = *(const volatile limpet_pair *)from;
    if (words & 1)
        *(limpet_loose *)to = __atomic_load_n((const limpet_word *)from, __ATOMIC_RELAXED);
}

static inline void limpet_pairs_in(void *to, const void *from, size_t words) {
    const char *end = (const char *)from + 8 * (words & ~(size_t)1);
#pragma GCC unroll 4
    for (; (const char *)from != end; from = (const char *)from + 16, to = (char *)to + 16)
        *(volatile limpet_pair *)to = *(const limpet_loose_pair *)from;
    if (words & 1)
        __atomic_store_n((limpet_word *)to, *(const limpet_loose *)from, __ATOMIC_RELAXED);
}

/* The same into it. */
static inline void limpet_words_in(void *to, const void *from, size_t words) {
#if !defined(__x86_64__)
    /* ORDER: the first word before the others: the odd sequence of a row before its header line;
     * the last word after them: a count after what it counts. On x86-64 stores stay in order. */
    if (words > 1) {
        limpet_pairs_in(to, from, 1);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        limpet_pairs_in((char *)to + 8, (const char *)from + 8, words - 2);
        limpet_store((char *)to + 8 * (words - 1), ((const limpet_loose *)from)[words - 1]);
        return;
    }
#endif
    limpet_pairs_in(to, from, words);
}

/* At most LIMPET_WORDWISE words. */
static inline void limpet_copy_words(void *to, const void *from, size_t words) {
    limpet_words_out(to, from, words);
    /* ORDER: what is read next must not be read before this copy. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static inline void limpet_copy_out(void *to, const void *from, size_t n) {
    if (LIMPET_BY_WORDS(n) && (((uintptr_t)from) & 7) == 0) {
        limpet_words_out(to, from, n >> 3);
        memcpy((char *)to + (n & ~(size_t)7), (const char *)from + (n & ~(size_t)7), n & 7);
    } else if ((((uintptr_t)from) & 7) == 0) {
        /* ORDER: the first two words before the others; memcpy may begin at the end. */
        limpet_words_out(to, from, 2);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        memcpy((char *)to + 16, (const char *)from + 16, n - 16);
    } else {
        memcpy(to, from, n);
    }
    /* ORDER: what is read next must not be read before this copy. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* ORDER: what is read next must not be read before what was used in place up to here. */
static inline void limpet_used(void) {
    __asm__ __volatile__("" ::: "memory");
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* A hint. GCC takes a function that does nothing but prefetch for one without effect, and leaves it
 * out, unless a statement says otherwise. */
#define limpet_prefetch(p, writes)                                                                 \
    do {                                                                                           \
        __builtin_prefetch(p, writes);                                                             \
        __asm__ __volatile__("");                                                                  \
    } while (0)

static inline void limpet_copy_in(void *to, const void *from, size_t n) {
    /* ORDER: what was written before must not become visible after this copy. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    if (LIMPET_BY_WORDS(n) && (((uintptr_t)to) & 7) == 0) {
        limpet_words_in(to, from, n >> 3);
        if (n & 7)
            memcpy((char *)to + (n & ~(size_t)7), (const char *)from + (n & ~(size_t)7), n & 7);
    } else {
        memcpy(to, from, n);
    }
}

/* `n` bytes, and zeros up to the next whole word, to an aligned address. */
static inline void limpet_copy_padded(void *to, const void *from, size_t n) {
    size_t whole = n & ~(size_t)7;
    limpet_word last = 0;
    limpet_copy_in(to, from, whole);
    if (n & 7) {
        for (size_t i = n; i > whole; i--)
            last = last << 8 | ((const unsigned char *)from)[i - 1];
        __atomic_store_n((limpet_word *)((char *)to + whole), last, __ATOMIC_RELAXED);
    }
}

/* ---- long copies: without the GIL, and past the caches ---------------------------------------- */

#define LIMPET_LONG (64 << 10)     /* from here on a copy takes longer than letting the GIL go */
#define LIMPET_STREAMED (256 << 10) /* from here on stores go past the caches */

/* A long value goes to memory that is mostly in no cache: ordinary stores would read each of its
 * lines first, which takes twice as long. Whole lines, to the beginning of a line; a fence follows
 * the last of them. */
static inline void limpet_stream(char *to, const char *from, size_t n) {
#if defined(__x86_64__)
    for (const char *end = from + n; from != end; from += LIMPET_LINE, to += LIMPET_LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)from + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)from + 2);
        __m128i d = _mm_loadu_si128((const __m128i *)from + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
    }
#else
    limpet_copy_in(to, from, n);
#endif
}

static inline void limpet_copy_lines(char *to, const char *from, size_t n, int streamed) {
    if (streamed)
        limpet_stream(to, from, n);
    else
        limpet_copy_in(to, from, n);
}

/* ORDER: streamed stores are ordered by nothing else; the link comes after them. */
static inline void limpet_stream_end(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

static void limpet_copy_long(void *to, const void *from, size_t n) {
    if (n < LIMPET_STREAMED) {
        limpet_copy_in(to, from, n);
        return;
    }
    size_t head = -(uintptr_t)to & (LIMPET_LINE - 1);
    size_t lines = (n - head) & ~(size_t)(LIMPET_LINE - 1);
    limpet_copy_in(to, from, head);
    limpet_stream((char *)to + head, (const char *)from + head, lines);
    limpet_copy_in((char *)to + head + lines, (const char *)from + head + lines, n - head - lines);
    limpet_stream_end();
}

/* ---- words with a tag ------------------------------------------------------------------------- */

/* Which of `n` words, at most 64, have these bits 56-63. */
static inline limpet_word limpet_tagged(const void *p, size_t n, uint8_t tag) {
    const limpet_word *words = (const limpet_word *)p;
    limpet_word found = 0;
    size_t i = 0;
#if defined(__x86_64__)
    __m128i tags = _mm_set1_epi8((char)tag);
    for (; i + 16 <= n; i += 16) {
        const float *at = (const float *)(words + i);
        __m128i quads[4]; /* the upper bytes of four words each, in 32 bits each */
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            quads[k] = _mm_srli_epi32(
                _mm_castps_si128(_mm_shuffle_ps(_mm_loadu_ps(at + 8 * k),
                                                _mm_loadu_ps(at + 8 * k + 4), 0xDD)),
                24);
        __m128i upper = _mm_packus_epi16(_mm_packs_epi32(quads[0], quads[1]),
                                         _mm_packs_epi32(quads[2], quads[3]));
        found |= (limpet_word)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(upper, tags)) << i;
    }
#endif
    for (; i < n; i++)
        found |= (limpet_word)(words[i] >> 56 == tag) << i;
    return found;
}

/* Copy 16 aligned words out of memory that others write; which of them have these bits 56-63. */
static inline limpet_word limpet_copy_tagged(void *to, const void *from, uint8_t tag) {
#if defined(__x86_64__)
    const volatile limpet_pair *at = (const volatile limpet_pair *)from;
    limpet_loose_pair *copy = (limpet_loose_pair *)to;
    __m128i quads[4]; /* the upper bytes of four words each, in 32 bits each */
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        limpet_pair low = at[2 * k], high = at[2 * k + 1];
        copy[2 * k] = low;
        copy[2 * k + 1] = high;
        quads[k] = _mm_srli_epi32(
            _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps((__m128i)low),
                                            _mm_castsi128_ps((__m128i)high), 0xDD)),
            24);
    }
    __m128i upper =
        _mm_packus_epi16(_mm_packs_epi32(quads[0], quads[1]), _mm_packs_epi32(quads[2], quads[3]));
    return (limpet_word)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(upper, _mm_set1_epi8((char)tag)));
#else
    limpet_copy_words(to, from, 16);
    return limpet_tagged(to, 16, tag);
#endif
}

/* ---- XXH64, from its published specification ------------------------------------------------ */

#define LIMPET_P1 0x9E3779B185EBCA87ULL
#define LIMPET_P2 0xC2B2AE3D27D4EB4FULL
#define LIMPET_P3 0x165667B19E3779F9ULL
#define LIMPET_P4 0x85EBCA77C2B2AE63ULL
#define LIMPET_P5 0x27D4EB2F165667C5ULL

static inline uint64_t limpet_rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

static inline uint64_t limpet_lane(uint64_t scope, uint64_t word) {
    return limpet_rotate(scope + word * LIMPET_P2, 31) * LIMPET_P1;
}

static inline uint64_t limpet_merge(uint64_t hash, uint64_t scope) {
    return (hash ^ limpet_lane(0, scope)) * LIMPET_P1 + LIMPET_P4;
}

static inline uint64_t limpet_word_at(const unsigned char *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint64_t limpet_hash64(const unsigned char *p, size_t n, uint64_t seed) {
    const unsigned char *end = p + n;
    uint64_t hash;
    if (n >= 32) {
        uint64_t a = seed + LIMPET_P1 + LIMPET_P2, b = seed + LIMPET_P2, c = seed,
                 d = seed - LIMPET_P1;
        for (; end - p >= 32; p += 32) {
            a = limpet_lane(a, limpet_word_at(p));
            b = limpet_lane(b, limpet_word_at(p + 8));
            c = limpet_lane(c, limpet_word_at(p + 16));
            d = limpet_lane(d, limpet_word_at(p + 24));
        }
        hash = limpet_rotate(a, 1) + limpet_rotate(b, 7) + limpet_rotate(c, 12) +
               limpet_rotate(d, 18);
        hash = limpet_merge(hash, a);
        hash = limpet_merge(hash, b);
        hash = limpet_merge(hash, c);
        hash = limpet_merge(hash, d);
    } else {
        hash = seed + LIMPET_P5;
    }
    hash += (uint64_t)n;
    for (; end - p >= 8; p += 8)
        hash = limpet_rotate(hash ^ limpet_lane(0, limpet_word_at(p)), 27) * LIMPET_P1 + LIMPET_P4;
    if (end - p >= 4) {
        uint32_t half;
        memcpy(&half, p, 4);
        hash = limpet_rotate(hash ^ half * LIMPET_P1, 23) * LIMPET_P2 + LIMPET_P3;
        p += 4;
    }
    for (; p < end; p++)
        hash = limpet_rotate(hash ^ *p * LIMPET_P5, 11) * LIMPET_P1;
    hash = (hash ^ (hash >> 33)) * LIMPET_P2;
    hash = (hash ^ (hash >> 29)) * LIMPET_P3;
    return hash ^ (hash >> 32);
}

/* ---- XXH3 of 64 bits, of inputs that are longer than 240 bytes, from its specification -------- */

static const uint64_t limpet_secret[24] = {
    0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
    0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL, 0x4c263a81e69035e0ULL,
    0xcb00c391bb52283cULL, 0xa32e531b8b65d088ULL, 0x4ef90da297486471ULL, 0xd8acdea946ef1938ULL,
    0x3f349ce33f76faa8ULL, 0x1d4f0bc7c7bbdcf9ULL, 0x3159b4cd4be0518aULL, 0x647378d9c97e9fc8ULL,
    0xc3ebd33483acc5eaULL, 0xeb6313faffa081c5ULL, 0x49daf0b751dd0d17ULL, 0x9e68d429265516d3ULL,
    0xfca1477d58be162bULL, 0xce31d07ad1b8f88fULL, 0x280416958f3acb45ULL, 0x7e404bbbcafbd7afULL,
};

/* `stripes` of 64 bytes into the eight sums; the secret moves on by 8 bytes a stripe. */
static void limpet_stripes_plain(uint64_t *sums, const unsigned char *p, const unsigned char *secret,
                                 size_t stripes) {
    for (; stripes; stripes--, p += 64, secret += 8)
        for (int i = 0; i < 8; i++) {
            uint64_t word = limpet_word_at(p + 8 * i);
            uint64_t key = word ^ limpet_word_at(secret + 8 * i);
            sums[i ^ 1] += word;
            sums[i] += (key & UINT32_MAX) * (key >> 32);
        }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
limpet_stripes_avx2(uint64_t *sums, const unsigned char *p, const unsigned char *secret,
                    size_t stripes) {
    __m256i low = _mm256_loadu_si256((const __m256i *)sums);
    __m256i high = _mm256_loadu_si256((const __m256i *)sums + 1);
    for (; stripes; stripes--, p += 64, secret += 8) {
        __m256i a = _mm256_loadu_si256((const __m256i *)p);
        __m256i b = _mm256_loadu_si256((const __m256i *)p + 1);
        __m256i ka = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)secret));
        __m256i kb = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)secret + 1));
        low = _mm256_add_epi64(low, _mm256_shuffle_epi32(a, 0x4E));
        high = _mm256_add_epi64(high, _mm256_shuffle_epi32(b, 0x4E));
        low = _mm256_add_epi64(low, _mm256_mul_epu32(ka, _mm256_srli_epi64(ka, 32)));
        high = _mm256_add_epi64(high, _mm256_mul_epu32(kb, _mm256_srli_epi64(kb, 32)));
    }
    _mm256_storeu_si256((__m256i *)sums, low);
    _mm256_storeu_si256((__m256i *)sums + 1, high);
}
#endif

static void limpet_stripes(uint64_t *sums, const unsigned char *p, const unsigned char *secret,
                           size_t stripes) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        limpet_stripes_avx2(sums, p, secret, stripes);
        return;
    }
#endif
    limpet_stripes_plain(sums, p, secret, stripes);
}

static inline uint64_t limpet_fold(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Of `n` bytes, 1 KiB or more. If there is a `to`, they are copied there, each block of 1 KiB when
 * it has been summed and is still in a cache. */
static inline uint64_t limpet_xxh3_copied(const unsigned char *p, size_t n, uint64_t seed,
                                          char *to) {
    size_t copied = to ? -(uintptr_t)to & (LIMPET_LINE - 1) : 0;
    if (to)
        limpet_copy_in(to, p, copied);
    uint64_t sums[8] = {0xC2B2AE3DU, LIMPET_P1, LIMPET_P2,   LIMPET_P3,
                        LIMPET_P4,   0x85EBCA77U, LIMPET_P5, 0x9E3779B1U};
    uint64_t words[24];
    const unsigned char *secret = (const unsigned char *)words;
    for (int i = 0; i < 24; i++)
        words[i] = i & 1 ? limpet_secret[i] - seed : limpet_secret[i] + seed;
    size_t blocks = (n - 1) / 1024;
    for (size_t block = 0; block < blocks; block++) {
        limpet_stripes(sums, p + 1024 * block, secret, 16);
        for (int i = 0; i < 8; i++)
            sums[i] = (sums[i] ^ (sums[i] >> 47) ^ words[16 + i]) * 0x9E3779B1U;
        if (to) {
            size_t lines = (1024 * (block + 1) - copied) & ~(size_t)(LIMPET_LINE - 1);
            limpet_copy_lines(to + copied, (const char *)p + copied, lines, n >= LIMPET_STREAMED);
            copied += lines;
        }
    }
    if (to) {
        size_t lines = (n - copied) & ~(size_t)(LIMPET_LINE - 1);
        limpet_copy_lines(to + copied, (const char *)p + copied, lines, n >= LIMPET_STREAMED);
        copied += lines;
        limpet_copy_in(to + copied, p + copied, n - copied);
        limpet_stream_end();
    }
    limpet_stripes(sums, p + 1024 * blocks, secret, (n - 1 - 1024 * blocks) / 64);
    limpet_stripes(sums, p + n - 64, secret + 121, 1);
    uint64_t hash = (uint64_t)n * LIMPET_P1;
    for (int i = 0; i < 4; i++)
        hash += limpet_fold(sums[2 * i] ^ limpet_word_at(secret + 11 + 16 * i),
                            sums[2 * i + 1] ^ limpet_word_at(secret + 19 + 16 * i));
    hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9ULL;
    return hash ^ (hash >> 32);
}

static uint64_t limpet_xxh3_long(const unsigned char *p, size_t n, uint64_t seed) {
    return limpet_xxh3_copied(p, n, seed, NULL);
}

static uint64_t limpet_xxh3_copy(void *to, const unsigned char *p, size_t n, uint64_t seed) {
    return limpet_xxh3_copied(p, n, seed, (char *)to);
}

/* ---- CRC-32C, by the instruction where the CPU has it ---------------------------------------- */

/* Without one: a byte at a time, by a table made at the first use. */
static uint32_t limpet_crc_table[256];

static uint64_t limpet_crc_plain(uint64_t crc, uint64_t word) {
    if (limpet_crc_table[1] == 0)
        for (int byte = 255; byte >= 0; byte--) {
            uint32_t entry = (uint32_t)byte;
            for (int i = 0; i < 8; i++)
                entry = (entry >> 1) ^ ((entry & 1) ? UINT32_C(0x82F63B78) : 0);
            __atomic_store_n(&limpet_crc_table[byte], entry, __ATOMIC_RELEASE);
        }
    for (int i = 0; i < 8; i++, word >>= 8)
        crc = (crc >> 8) ^ limpet_crc_table[(crc ^ word) & 255];
    return crc;
}

/* Two CRC-32C in one word: of `n` words, and of the same words times an odd number. Each is made of
 * those of the even and of the odd places, so that four run side by side. 0 for zeros. One of them
 * is shifted by a byte, or equal changes of two words that are neighbours would cancel out. */
#define LIMPET_CRC_PAIR(step)                                                                      \
    uint64_t low = 0, low_odd = 0, high = 0, high_odd = 0;                                         \
    for (; n > 1; n -= 2, p += 2) {                                                                \
        low = step(low, p[0]);                                                                     \
        high = step(high, p[0] * LIMPET_P1);                                                       \
        low_odd = step(low_odd, p[1]);                                                             \
        high_odd = step(high_odd, p[1] * LIMPET_P1);                                               \
    }                                                                                              \
    if (n) {                                                                                       \
        low = step(low, p[0]);                                                                     \
        high = step(high, p[0] * LIMPET_P1);                                                       \
    }                                                                                              \
    return (uint64_t)step(high, high_odd << 8) << 32 | (uint64_t)step(low, low_odd << 8)

static uint64_t limpet_crc_pair_plain(const uint64_t *p, size_t n) {
    LIMPET_CRC_PAIR(limpet_crc_plain);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint64_t
limpet_crc_pair_hardware(const uint64_t *p, size_t n) {
    LIMPET_CRC_PAIR(_mm_crc32_u64);
}
#elif defined(__aarch64__)
/* By the assembler: compilers know the instruction only if it is in what they compile for. */
static inline uint64_t limpet_crc_step(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
    return (uint32_t)crc;
}

static uint64_t limpet_crc_pair_hardware(const uint64_t *p, size_t n) {
    LIMPET_CRC_PAIR(limpet_crc_step);
}
#endif

/* Whether the CPU has the instruction. */
static int limpet_has_crc(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return 0;
#endif
}

static uint64_t limpet_crc_pair(const void *words, size_t n, int hardware) {
    const uint64_t *p = (const uint64_t *)words;
#if defined(__x86_64__) || defined(__aarch64__)
    if (hardware)
        return limpet_crc_pair_hardware(p, n);
#endif
    (void)hardware;
    return limpet_crc_pair_plain(p, n);
}

/* ---- memory without hardware coherence ------------------------------------------------------ */

#define LIMPET_HAS_CLFLUSHOPT 1
#define LIMPET_HAS_CLWB 2

/* What CPUID says: LIMPET_HAS_CLFLUSHOPT | LIMPET_HAS_CLWB; 0 where neither exists. */
static int limpet_flush_features(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return ((b >> 23) & 1 ? LIMPET_HAS_CLFLUSHOPT : 0) | ((b >> 24) & 1 ? LIMPET_HAS_CLWB : 0);
#endif
    return 0;
}

#if defined(__x86_64__)
__attribute__((target("clwb"))) static void limpet_clwb(const char *p, const char *end) {
    for (; p < end; p += LIMPET_LINE)
        _mm_clwb((void *)p);
}
__attribute__((target("clflushopt"))) static void limpet_clflushopt(const char *p,
                                                                    const char *end) {
    for (; p < end; p += LIMPET_LINE)
        _mm_clflushopt((void *)p);
}
#endif

/* Begin to push the lines of [p, p + n) to memory; they are there after the next fence. */
static void limpet_flush(const char *p, size_t n, int features) {
#if defined(__x86_64__)
    const char *line = (const char *)((uintptr_t)p & ~(uintptr_t)(LIMPET_LINE - 1));
    if (features & LIMPET_HAS_CLWB)
        limpet_clwb(line, p + n);
    else
        limpet_clflushopt(line, p + n);
#else
    (void)p, (void)n, (void)features;
    __builtin_trap(); /* never reached: attach and make_durable refuse such memory here */
#endif
}

/* Wait until what was flushed is in memory. */
static void limpet_fence(void) {
#if defined(__x86_64__)
    _mm_sfence();
#else
    __builtin_trap();
#endif
}

/* Push the lines of [p, p + n) to memory; they are there when this returns. */
static void limpet_write_back(const char *p, size_t n, int features) {
    limpet_flush(p, n, features);
    limpet_fence();
}

/* Drop the lines of [p, p + n) from this CPU's caches, so that the next load goes to memory. */
static void limpet_invalidate(const char *p, size_t n) {
#if defined(__x86_64__)
    limpet_clflushopt((const char *)((uintptr_t)p & ~(uintptr_t)(LIMPET_LINE - 1)), p + n);
    _mm_mfence();
#else
    (void)p, (void)n;
    __builtin_trap();
#endif
}

/* ---- SIGBUS: a node that loses its memory must not take the process with it ----------------- */

#define LIMPET_RANGES 4096

#define LIMPET_PAGES 8

#define LIMPET_LOST 1
#define LIMPET_SHORT 2
#define LIMPET_TORN 3

static struct {
    char *base; /* 0: free */
    size_t size;
    volatile unsigned char lost; /* 0, LIMPET_LOST, LIMPET_SHORT or LIMPET_TORN */
    int whole;                   /* it is never torn: what is in it is of use as a whole only */
    int fd;                      /* of the file that is mapped, from its first byte on; -1: none */
    dev_t device;                /* of that file: its number may be another file's by now */
    ino_t inode;
    char *short_low, *short_high; /* LIMPET_SHORT: the pages that are not the file's lie within */
    int torn;                     /* LIMPET_TORN: so many runs of pages are lost */
    limpet_word state;            /* of an endpoint's node, which is torn: its state word */
    struct {
        char *low, *high;
    } pages[LIMPET_PAGES];
} limpet_ranges[LIMPET_RANGES];
static uintptr_t limpet_page = 4096;
static struct sigaction limpet_previous_bus;
static int limpet_bus_installed = 0;

static int limpet_same_memory(int i, int j) {
    char *mine = limpet_ranges[i].base, *other = limpet_ranges[j].base;
    return other && other < mine + limpet_ranges[i].size && mine < other + limpet_ranges[j].size;
}

/* Whether the descriptor of range `i` is still that of the file that is mapped; its status. */
static int limpet_is_ours(int i, struct stat *status) {
    return fstat(limpet_ranges[i].fd, status) == 0 && status->st_dev == limpet_ranges[i].device &&
           status->st_ino == limpet_ranges[i].inode;
}

/* A load or store hit a page of range `i` that the file has and its file system has no memory for.
 * Put a page of zeros in its place, until `limpet_give_back`, and note that; 0: it is not so. The verb
 * that faulted sees the note when it is done and raises StoreFull. */
static int limpet_run_short(int i, const char *at, int poisoned) {
    struct stat status;
    char *page = (char *)((uintptr_t)at & ~(limpet_page - 1));
    if (poisoned || limpet_ranges[i].fd < 0 ||
        (limpet_ranges[i].lost && limpet_ranges[i].lost != LIMPET_SHORT) ||
        !limpet_is_ours(i, &status) || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size < limpet_ranges[i].size)
        return 0;
    if (mmap(page, limpet_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) != page)
        return 0;
    if (limpet_ranges[i].lost != LIMPET_SHORT || page < limpet_ranges[i].short_low)
        limpet_ranges[i].short_low = page;
    if (limpet_ranges[i].lost != LIMPET_SHORT || page + limpet_page > limpet_ranges[i].short_high)
        limpet_ranges[i].short_high = page + limpet_page;
    for (int j = 0; j < LIMPET_RANGES; j++)
        if (limpet_same_memory(i, j) && limpet_ranges[j].lost != LIMPET_LOST) {
            limpet_ranges[j].short_low = limpet_ranges[i].short_low;
            limpet_ranges[j].short_high = limpet_ranges[i].short_high;
            limpet_ranges[j].lost = LIMPET_SHORT;
        }
    return 1;
}

/* Have the file's pages again where `limpet_run_short` put others; 0: that cannot be, it is lost. */
static int limpet_give_back(int i) {
    char *low = limpet_ranges[i].short_low;
    size_t size = (size_t)(limpet_ranges[i].short_high - low);
    struct stat status;
    int well = limpet_is_ours(i, &status) &&
               mmap(low, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, limpet_ranges[i].fd,
                    (off_t)(low - limpet_ranges[i].base)) == low;
    for (int j = 0; j < LIMPET_RANGES; j++)
        if (limpet_same_memory(i, j) && limpet_ranges[j].lost == LIMPET_SHORT)
            limpet_ranges[j].lost = well ? 0 : LIMPET_LOST;
    return well;
}

/* A load or store hit a page of range `i` that is poisoned, as 2^`shift` bytes are with it. Put pages
 * of zeros there, and note them; 0: it is not so. The verb that faulted sees the note when it is done
 * and raises NodeFailed. */
static int limpet_tear(int i, const char *at, int shift) {
    uintptr_t size = shift > 0 && shift < 48 ? (uintptr_t)1 << shift : 0;
    char *end = limpet_ranges[i].base + limpet_ranges[i].size;
    if (size < limpet_page)
        size = limpet_page;
    char *low = (char *)((uintptr_t)at & ~(size - 1)), *high = low + size;
    if (low < limpet_ranges[i].base)
        low = limpet_ranges[i].base;
    if (high > end)
        high = (char *)(((uintptr_t)end + limpet_page - 1) & ~(limpet_page - 1));
    if (limpet_ranges[i].whole || limpet_ranges[i].torn >= LIMPET_PAGES ||
        (limpet_ranges[i].lost && limpet_ranges[i].lost != LIMPET_TORN))
        return 0;
    /* ORDER: noted first: another thread that finds the zeros finds the note, too. */
    for (int j = 0; j < LIMPET_RANGES; j++) {
        if (!limpet_same_memory(i, j))
            continue;
        int n = LIMPET_PAGES;
        if (!limpet_ranges[j].whole && limpet_ranges[j].lost != LIMPET_LOST)
            n = __atomic_fetch_add(&limpet_ranges[j].torn, 1, __ATOMIC_SEQ_CST);
        if (n < LIMPET_PAGES) {
            limpet_ranges[j].pages[n].low = low;
            limpet_ranges[j].pages[n].high = high;
        }
        limpet_ranges[j].lost = n < LIMPET_PAGES ? LIMPET_TORN : LIMPET_LOST;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return mmap(low, (size_t)(high - low), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == low;
}

/* How many runs of pages of range `i` are noted as lost. */
static int limpet_torn(int i) {
    return limpet_ranges[i].torn < LIMPET_PAGES ? limpet_ranges[i].torn : LIMPET_PAGES;
}

/* Whether any of [at, at + size), within range `i`, is lost by `limpet_tear`. */
static int limpet_is_torn(int i, const char *at, size_t size) {
    for (int n = 0; n < limpet_torn(i); n++)
        if (at < limpet_ranges[i].pages[n].high && limpet_ranges[i].pages[n].low < at + size)
            return 1;
    return 0;
}

/* A load or store hit a page that is gone. Put zero pages under the whole node, note the loss in
 * every range that they touch (two endpoints may share a mapping), and go on: the verb that faulted
 * sees the note when it is done and raises NodeFailed. mmap is a bare system call on Linux, so this
 * is safe in a handler. */
static int limpet_replace(const char *at, int poisoned, int shift) {
    for (int i = 0; i < LIMPET_RANGES; i++) {
        char *base = __atomic_load_n(&limpet_ranges[i].base, __ATOMIC_ACQUIRE);
        size_t size = limpet_ranges[i].size;
        if (!base || at < base || at >= base + size)
            continue;
        if (limpet_run_short(i, at, poisoned) || (poisoned && limpet_tear(i, at, shift)))
            return 1;
        if (mmap(base, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != base)
            return 0;
        for (int j = 0; j < LIMPET_RANGES; j++)
            if (limpet_same_memory(i, j))
                limpet_ranges[j].lost = LIMPET_LOST;
        return 1;
    }
    return 0;
}

static void limpet_on_bus(int number, siginfo_t *info, void *context) {
    int fault = info->si_code > 0; /* else someone sent the signal: there is no address */
    int poisoned = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO;
    if (fault && limpet_replace((const char *)info->si_addr, poisoned, poisoned ? info->si_addr_lsb : 0))
        return;
    /* Not ours: whoever had the signal before gets it, and this handler stays. */
    if (limpet_previous_bus.sa_flags & SA_SIGINFO) {
        limpet_previous_bus.sa_sigaction(number, info, context);
    } else if (limpet_previous_bus.sa_handler == SIG_DFL) {
        sigaction(number, &limpet_previous_bus, 0);
        raise(number);
    } else if (limpet_previous_bus.sa_handler != SIG_IGN) {
        limpet_previous_bus.sa_handler(number);
    } else if (fault) {
        signal(number, SIG_DFL); /* a fault cannot be ignored: it comes again, for the last time */
    }
}

/* Watch [base, base + size), the beginning of the file `fd` if that is not -1; `whole`: one lost page
 * is the loss of all. The index of the range, or -1 when the table is full. */
static int limpet_watch_range(char *base, size_t size, int fd, int whole) {
    if (!limpet_bus_installed) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = limpet_on_bus;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &limpet_previous_bus);
        limpet_bus_installed = 1;
        limpet_page = (uintptr_t)sysconf(_SC_PAGESIZE);
    }
    for (int i = 0; i < LIMPET_RANGES; i++)
        if (!limpet_ranges[i].base) {
            limpet_ranges[i].size = size;
            limpet_ranges[i].lost = 0;
            limpet_ranges[i].whole = whole;
            limpet_ranges[i].torn = 0;
            limpet_ranges[i].fd = fd;
            struct stat status;
            memset(&status, 0, sizeof status);
            if (fd >= 0)
                fstat(fd, &status);
            limpet_ranges[i].device = status.st_dev;
            limpet_ranges[i].inode = status.st_ino;
            /* ORDER: last: a range with a base is complete, for another thread's handler. */
            __atomic_store_n(&limpet_ranges[i].base, base, __ATOMIC_RELEASE);
            return i;
        }
    return -1;
}

static void limpet_forget_range(int i) { limpet_ranges[i].base = 0; }

/* The same, and close its descriptor, unless that was closed behind us. */
static void limpet_close_range(int i) {
    struct stat status;
    limpet_forget_range(i);
    if (limpet_ranges[i].fd >= 0 && limpet_is_ours(i, &status))
        close(limpet_ranges[i].fd);
}

/* ---- fork and death ------------------------------------------------------------------------- */

static volatile unsigned long limpet_forks = 0;
static int limpet_forks_watched = 0;

static void limpet_on_fork(void) { limpet_forks++; }

static void limpet_watch_forks(void) {
    if (!limpet_forks_watched) {
        limpet_forks_watched = 1;
        pthread_atfork(0, 0, limpet_on_fork);
    }
}

static __attribute__((noreturn)) void limpet_die(void) {
    kill(getpid(), SIGKILL);
    for (;;) /* another thread may have taken the signal; not one step more here */
        pause();
}

/* ---- time ------------------------------------------------------------------------------------ */

static inline uint64_t limpet_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void limpet_relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* `yield` does nothing on most of these CPUs */
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

static void limpet_spin_ns(uint64_t ns) {
    uint64_t end = limpet_now_ns() + ns;
    while (limpet_now_ns() < end)
        limpet_relax();
}

static void limpet_sleep_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    nanosleep(&t, 0);
}

/* Sleep while the low half of the word is `expected`, at most so long; 0: that is over. Not private
 * to the process, so that processes which have the memory mapped elsewhere can wake us. */
static int limpet_futex_wait(const void *p, uint32_t expected, uint64_t us) {
    struct timespec t = {(time_t)(us / 1000000u), (long)(us % 1000000u) * 1000};
    return syscall(SYS_futex, p, FUTEX_WAIT, expected, &t, 0, 0) == 0 || errno != ETIMEDOUT;
}

/* Wake up to `count` of those that sleep on the word; how many there were. */
static int limpet_futex_wake(const void *p, int count) {
    return (int)syscall(SYS_futex, p, FUTEX_WAKE, count, 0, 0, 0);
}

/* Sleep while the low half of each word at `places` is that of `values`, at most so long: the number
 * of a word that was woken; -1: the time is over, or a signal came; -2: a word differs; -3: a place
 * has no memory; -4: this kernel has no such call, or forbids it. */
static int limpet_futex_waitv(const uint64_t *places, const uint64_t *values, int count,
                              uint64_t us) {
#if defined(SYS_futex_waitv)
    struct futex_waitv words[FUTEX_WAITV_MAX];
    struct timespec end;
    long found;
    for (int i = 0; i < count; i++)
        words[i] = (struct futex_waitv){.val = (uint32_t)values[i], .uaddr = places[i],
                                        .flags = FUTEX_32};
    clock_gettime(CLOCK_MONOTONIC, &end);
    us += (uint64_t)end.tv_nsec / 1000u;
    end.tv_sec += (time_t)(us / 1000000u);
    end.tv_nsec = end.tv_nsec % 1000 + (long)(us % 1000000u) * 1000;
    found = syscall(SYS_futex_waitv, words, count, 0, &end, CLOCK_MONOTONIC);
    if (found >= 0)
        return (int)found;
    if (errno == ETIMEDOUT || errno == EINTR)
        return -1;
    return errno == EAGAIN ? -2 : errno == EFAULT ? -3 : -4;
#else
    (void)places, (void)values, (void)count, (void)us;
    return -4;
#endif
}

/* The time in us since 1970. */
static uint64_t limpet_microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---- the lease of a client -------------------------------------------------------------------- */

/* A thread that renews the lease of one client, and needs no interpreter: a call that keeps the GIL
 * for long does not stop it. SIGSTOP, a frozen container and the end of the process do. */
typedef struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int over;
    pid_t pid; /* of the process that has the thread; a forked child has none */
    char *slot;
    limpet_word word; /* of the slot, as long as it is this client's */
    uint64_t lease_ns;
    int beat, fence, pin, progress; /* offsets in the slot */
} limpet_lease;

static void *limpet_lease_renew(void *argument) {
    limpet_lease *lease = argument;
    limpet_word pin = 0, progress = 0;
    uint64_t since = 0;
    pthread_mutex_lock(&lease->mutex);
    while (!lease->over && limpet_load(lease->slot) == lease->word) {
        uint64_t now = limpet_now_ns();
        limpet_word found = limpet_load(lease->slot + lease->pin);
        limpet_word counted = limpet_load(lease->slot + lease->progress);
        if (!found || found != pin || counted != progress) {
            pin = found;
            progress = counted;
            since = now;
        }
        limpet_word asked = limpet_load(lease->slot + lease->fence);
        /* A client that others want ended is not spared while it stands still in one operation. */
        if (!asked || now - since < lease->lease_ns) {
            limpet_word before = limpet_load(lease->slot + lease->beat);
            limpet_word clock = limpet_microseconds();
            limpet_store(lease->slot + lease->beat, clock > before ? clock : before + 1);
            if (asked) /* it stood still, and goes on */
                limpet_cas(lease->slot + lease->fence, asked, 0);
        }
        struct timespec until;
        uint64_t due = now + lease->lease_ns / 4;
        until.tv_sec = (time_t)(due / 1000000000u);
        until.tv_nsec = (long)(due % 1000000000u);
        pthread_cond_timedwait(&lease->changed, &lease->mutex, &until);
    }
    pthread_mutex_unlock(&lease->mutex);
    return 0;
}

/* 0: no thread can be started; `errno` says why. */
static limpet_lease *limpet_lease_begin(char *slot, limpet_word word, uint64_t lease_us, int beat,
                                        int fence, int pin, int progress) {
    limpet_lease *lease = malloc(sizeof *lease);
    pthread_condattr_t clock;
    sigset_t all, before;
    if (!lease)
        return 0;
    *lease = (limpet_lease){.pid = getpid(), .slot = slot, .word = word,
                            .lease_ns = lease_us * 1000u, .beat = beat, .fence = fence, .pin = pin,
                            .progress = progress};
    pthread_mutex_init(&lease->mutex, 0);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&lease->changed, &clock);
    pthread_condattr_destroy(&clock);
    /* Signals of the process go to its other threads; those of faults cannot be blocked. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&lease->thread, 0, limpet_lease_renew, lease);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (failed) {
        free(lease);
        errno = failed;
        return 0;
    }
    return lease;
}

/* Wait for the thread's end, which takes microseconds. In a forked child, where a copy of the mutex
 * may be locked for good, nothing is done. */
static void limpet_lease_end(limpet_lease *lease) {
    if (lease->pid != getpid())
        return;
    pthread_mutex_lock(&lease->mutex);
    lease->over = 1;
    pthread_cond_signal(&lease->changed);
    pthread_mutex_unlock(&lease->mutex);
    pthread_join(lease->thread, 0);
    pthread_cond_destroy(&lease->changed);
    pthread_mutex_destroy(&lease->mutex);
    free(lease);
}

#endif
