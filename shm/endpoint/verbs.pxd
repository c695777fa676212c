"""C-level face of the native fabric; verbs.pyx holds the words."""

cimport cython

ctypedef unsigned int u32
ctypedef unsigned long long u64

cdef struct Counters:
    u64 round_trips
    u64 reads
    u64 writes
    u64 atomics
    u64 cas
    u64 cas_lost
    u64 bytes_read
    u64 bytes_written
    u64 lines_flushed
    u64 fences
    u64 looks

cdef struct Dirty:
    u64 first
    u64 end

cdef struct Mapped:
    char* base
    u64 size
    u64 coherent
    volatile unsigned char* lost
    u64 state

cdef class Endpoint:
    cdef Mapped _map[256]
    cdef int _range[256]
    cdef u64* _states
    cdef dict _keep
    cdef Counters* _scopes
    cdef u64* figures
    cdef u64 _own[96]
    cdef Counters _before[3]
    cdef u64 _sent[256]
    cdef u64 _operation
    cdef Counters* _here
    cdef Counters* _outside
    cdef int _features
    cdef bint _incoherent
    cdef bint _plain
    cdef readonly bint hints
    cdef u64 _era
    cdef u64 _owner
    cdef bint _busy
    cdef bint _awaited
    cdef u64 _forks
    cdef long long _fuse
    cdef u64* _guard
    cdef u64 _guarded
    cdef bint _armed
    cdef public u64 latency_ns
    cdef public object frame
    cdef public object abandoned
    cdef public int met_loss
    cdef readonly bint durable
    cdef bint _unfenced
    cdef int _noted
    cdef Dirty _volatile[2]
    cdef Dirty _dirty[32]

    @cython.final
    cdef bint _take_over(self) except -1
    @cython.final
    cdef char* _at(self, u64 addr, u64 size) except NULL
    @cython.final
    cdef char* _word(self, u64 addr) except NULL
    @cython.final
    cdef void _forget(self) noexcept
    @cython.final
    cdef void _clear(self, int node) noexcept
    @cython.final
    cdef int _refuse(self, u64 addr, u64 size) except -1
    @cython.final
    cdef int _mourn(self, u64 node) except -1
    @cython.final
    cdef void _reads(self, u64 addr, u64 size, bint look) noexcept
    @cython.final
    cdef void _writes(self, u64 addr, u64 size) noexcept
    @cython.final
    cdef void _atomics(self, u64 addr, bint look) noexcept
    @cython.final
    cdef void _cas(self, u64 addr, bint lost, bint look) noexcept
    @cython.final
    cdef Counters* _scope(self, u64 addr) noexcept
    @cython.final
    cdef void _message(self, u64 addr) noexcept
    @cython.final
    cdef int _renew_edges(self, u64 addr, u64 size) except -1
    @cython.final
    cdef int _burn(self) except -1
    @cython.final
    cdef int _step(self, u64 addr) except -1
    @cython.final
    cdef void _arm(self) noexcept
    @cython.final
    cdef int _copy(self, u64 addr, char* target, const char* source, u64 size) except -1
    @cython.final
    cdef int _copy_armed(self, u64 addr, char* target, const char* source, u64 size) except -1

    cpdef int our_loss(self) noexcept
    cpdef int guard(self, u64 addr, u64 word) except -1
    cpdef bytes read(self, u64 addr, Py_ssize_t size)
    cpdef int read_into(self, u64 addr, buffer) except -1
    cpdef int read_words(self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=*) except -1
    cpdef u64 read_tagged(self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag) except? 0xFEEDFACEDEADBEA7
    cpdef void prefetch(self, u64 addr, u64 size, bint writes=*) noexcept
    cpdef void prefetch_target(self, u64 addr, u64 start, u64 size) noexcept
    cpdef bint failed(self, u64 addr) noexcept
    cpdef int write(self, u64 addr, data) except -1
    cpdef int write_gather(self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second) except -1
    cpdef int write_words(self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=*) except -1
    cpdef u64 load(self, u64 addr) except? 0xFEEDFACEDEADBEA7
    cpdef int store(self, u64 addr, u64 value) except -1
    cpdef int store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1
    cpdef u64 swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7
    cpdef bint pin(self, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops) except -1
    cpdef u64 glance(self, u64 stamp_at, u64 slot, u64 word) except? 0xFEEDFACEDEADBEA7
    cpdef bint stands(
        self, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer, u64 drops_at,
        u64 drops
    ) except -1
    cpdef u64 cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7
    cpdef u64 faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7
    cpdef u64 fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7
    cpdef u64 mcas(self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask) except? 0xFEEDFACEDEADBEA7
    cpdef int post_read(self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=*) except -1
    cpdef u64 post_tagged(self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag) except? 0xFEEDFACEDEADBEA7
    cpdef int post_image(self, Image image, u64 addr, Py_ssize_t count) except -1
    cpdef int post_write(self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=*) except -1
    cpdef int post_gather(self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second) except -1
    cpdef u64 post_load(self, u64 addr) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_cas_if(self, u64 first, u64 wanted, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_mcas(self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask) except? 0xFEEDFACEDEADBEA7
    cpdef int post_set(self, u64 addr, u64 bits) except -1
    cpdef int send_clear(self, u64 addr, u64 bits) except -1
    cpdef int send_store(self, u64 addr, u64 value) except -1
    cpdef int send_store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1
    cpdef int send_words(self, u64 addr, u64[::1] words, Py_ssize_t count) except -1
    cpdef u64 result(self, u64 ticket) except? 0xFEEDFACEDEADBEA7
    cpdef bytes fetch(self, u64 addr, Py_ssize_t size)
    cpdef bint background(self, bint on) noexcept
    cpdef int wait(self) except -1
    cpdef int pause(self, u64 attempt) except -1
    cpdef int futex_wait(self, u64 addr, u32 expected, u64 timeout_us) except -1
    cpdef int futex_wake(self, u64 addr, int count) except -1
    cpdef u64 microseconds(self) except? 0
    cpdef bint begin(self) except -1
    cpdef int end(self) except -1
    cpdef int write_back(self, u64 addr, u64 size) except -1
    cpdef int invalidate(self, u64 addr, u64 size) except -1
    cpdef object lend(self, u64 addr, u64 size, bint writable)
    cpdef bint lost(self, int node) except -1
    cpdef int make_durable(self, u64 node_from, u64 node_end, u64 control_from, u64 control_end) except -1
    cpdef int dirty(self, u64 addr, u64 size) except -1
    cpdef int flush(self, u64 addr, u64 size) except -1
    cpdef int persist(self) except -1

@cython.final
cdef class Image:
    cdef readonly Endpoint endpoint
    cdef readonly u64[::1] words
    cdef readonly u64 head
    cdef const char* _own
    cdef const char* _at
    cdef Py_ssize_t _size
    cdef u64 _addr
    cdef volatile unsigned char* _lost
    cdef u64* _states
    cdef u64 _state
    cdef u64* _eras
    cdef u64 _era
    cdef bint _in_place
    cdef int _matched

    cdef int _refuse(self, Py_ssize_t offset, Py_ssize_t size) except -1
    cdef int _refuse_words(self, Py_ssize_t first, Py_ssize_t count) except -1
    cdef int _mourn(self) except -1
    cpdef int read(self, u64 addr, Py_ssize_t count) except -1
    cpdef int post(self, u64 addr, Py_ssize_t count) except -1
    cpdef int post_keyed(self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes data) except -1
    cpdef bint matched(self, Py_ssize_t offset, bytes data) except -1
    cpdef int close(self) except -1
    cpdef int open(self) except -1
    cpdef bint read_keyed(self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes data) except -1
    cpdef object pair(self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes key)
    cpdef u64 word(self, Py_ssize_t index) except? 0xFEEDFACEDEADBEA7
    cpdef u64 number(self, Py_ssize_t offset) except? 0xFEEDFACEDEADBEA7
    cpdef bint equal(self, Py_ssize_t offset, bytes data) except -1
    cpdef bytes cut(self, Py_ssize_t offset, Py_ssize_t size)
    cpdef int compare(self, Py_ssize_t offset, Py_ssize_t size, bytes data) except -2
    cpdef int search(self, Py_ssize_t first, Py_ssize_t count, bytes data) except? -1
    cpdef u64 named(self, Py_ssize_t index, bytes data) except? 0
    cpdef int pairs(self, Py_ssize_t first, Py_ssize_t count, list found) except -1
    cpdef Py_ssize_t copy_pieces(
        self, Py_ssize_t first, Py_ssize_t count, u64[::1] words, Py_ssize_t place, Py_ssize_t end
    ) except -1
    cpdef Py_ssize_t insert_pieces(
        self,
        Py_ssize_t first,
        Py_ssize_t count,
        Py_ssize_t index,
        Py_ssize_t heap,
        bytes key,
        bytes value,
        u64 flags,
    ) except -1
    cpdef Py_ssize_t remove_pieces(
        self, Py_ssize_t first, Py_ssize_t count, Py_ssize_t index, Py_ssize_t heap
    ) except -1
    cpdef int own(self) except -1
    cpdef int forget(self) except -1

cpdef u64 hash64(bytes data, u64 seed=*)
cpdef u64 checksum(bytes data, u64 seed=*)
cdef u64 checksum_of(const unsigned char* data, u64 size, u64 seed)
cpdef u64 crc_pair(u64[::1] words, Py_ssize_t start, Py_ssize_t count, bint hardware=*) except? 0
cpdef u64 bit(int index) noexcept
cpdef int lowest_bit(u64 word) noexcept
cpdef bint fits_word(number) noexcept
cpdef bint words_equal(u64[::1] words, Py_ssize_t offset, bytes data) noexcept
cpdef bytes words_bytes(u64[::1] words, Py_ssize_t offset, Py_ssize_t size)
cpdef int words_put(u64[::1] words, Py_ssize_t offset, bytes data, Py_ssize_t size) except -1
cpdef int words_compare(u64[::1] words, Py_ssize_t offset, Py_ssize_t size, bytes data) except -2
cpdef u64 words_tagged(u64[::1] words, Py_ssize_t start, Py_ssize_t count, u64 tag) except? 0
cpdef void words_prefetch(u64[::1] words, Py_ssize_t index) noexcept
cpdef Py_ssize_t keys_below(list keys, bytes key, bint with_it) except -1
cpdef int words_move(u64[::1] words, Py_ssize_t target, Py_ssize_t start, Py_ssize_t size) except -1
cpdef int write_summed(
    Endpoint endpoint, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second, u64 seed
) except -1
cpdef int post_summed(
    Endpoint endpoint, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second, u64 seed
) except -1
