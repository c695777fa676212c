# Part of verbs.pyx: its declarations of C functions, from native.h and from the system.

cdef extern from "native.h":
    u64 limpet_load(const void*) noexcept nogil
    void limpet_store(void*, u64) noexcept nogil
    u64 limpet_swap(void*, u64) noexcept nogil
    u64 limpet_cas(void*, u64, u64) noexcept nogil
    u64 limpet_faa(void*, u64) noexcept nogil
    u64 limpet_fetch_or(void*, u64) noexcept nogil
    void limpet_set(void*, u64) noexcept nogil
    void limpet_clear(void*, u64) noexcept nogil
    u64 limpet_mcas(void*, u64, u64, u64, u64) noexcept nogil
    void limpet_copy_out(void*, const void*, size_t) noexcept nogil
    void limpet_copy_in(void*, const void*, size_t) noexcept nogil
    void limpet_copy_words(void*, const void*, size_t) noexcept nogil
    void limpet_copy_padded(void*, const void*, size_t) noexcept nogil
    void limpet_copy_long(void*, const void*, size_t) noexcept nogil
    Py_ssize_t LIMPET_WORDWISE
    u64 LIMPET_LONG
    void limpet_used() noexcept nogil
    void prefetch_line "limpet_prefetch" (const void*, int) noexcept nogil
    u64 limpet_tagged(const void*, size_t, unsigned char) noexcept nogil
    u64 limpet_copy_tagged(void*, const void*, unsigned char) noexcept nogil
    u64 limpet_hash64(const unsigned char*, size_t, u64) noexcept nogil
    u64 limpet_xxh3_long(const unsigned char*, size_t, u64) noexcept nogil
    u64 limpet_xxh3_copy(void*, const unsigned char*, size_t, u64) noexcept nogil
    u64 limpet_crc_pair(const void*, size_t, int) noexcept nogil
    int limpet_has_crc() noexcept nogil
    int limpet_flush_features() noexcept nogil
    void limpet_write_back(const char*, size_t, int) noexcept nogil
    void limpet_flush(const char*, size_t, int) noexcept nogil
    void limpet_fence() noexcept nogil
    void limpet_invalidate(const char*, size_t) noexcept nogil
    int limpet_watch_range(char*, size_t, int, int) noexcept nogil
    int limpet_is_torn(int, const char*, size_t) noexcept nogil
    int limpet_torn(int) noexcept nogil
    int limpet_give_back(int) noexcept nogil
    int LIMPET_LOST
    int LIMPET_SHORT
    int LIMPET_TORN
    void limpet_forget_range(int) noexcept nogil
    void limpet_close_range(int) noexcept nogil
    void limpet_watch_forks() noexcept nogil
    void limpet_die() noexcept nogil
    void limpet_relax() noexcept nogil
    void limpet_spin_ns(u64) noexcept nogil
    void limpet_sleep_ns(u64) noexcept nogil
    int limpet_futex_wait(const void*, u32, u64) noexcept nogil
    int limpet_futex_wake(const void*, int) noexcept nogil
    int limpet_futex_waitv(const u64*, const u64*, int, u64) noexcept nogil
    u64 limpet_microseconds() noexcept nogil
    ctypedef struct limpet_lease:
        pass
    limpet_lease* limpet_lease_begin(char*, u64, u64, int, int, int, int) noexcept nogil
    void limpet_lease_end(limpet_lease*) noexcept nogil
    int LIMPET_HAS_CLFLUSHOPT
    u64 OFFSET_MASK "LIMPET_OFFSET_MASK"
    u64 ADDRESS_MASK "LIMPET_ADDRESS_MASK"
    u64 CONTROL "LIMPET_CONTROL"
    u64 FORMER "LIMPET_FORMER"
    volatile unsigned long limpet_forks
    ctypedef struct Pages "typeof(limpet_ranges[0].pages[0])":
        char* low
        char* high
    ctypedef struct Range "typeof(limpet_ranges[0])":
        volatile unsigned char lost
        char* base
        u64 state
        Pages pages[8]
    Range limpet_ranges[4096]

cdef extern from "errno.h":
    int errno


cdef extern from "time.h":
    ctypedef struct timespec "struct timespec":
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*) noexcept nogil
    int CLOCK_BOOTTIME

cdef extern from "pthread.h":
    unsigned long pthread_self() noexcept nogil

cdef extern from "sched.h":
    int sched_yield() noexcept nogil

cdef extern from *:
    bint unlikely "__builtin_expect" (bint, long) noexcept nogil
    int ctzll "__builtin_ctzll" (u64) noexcept nogil
