# Part of verbs.pyx: the methods of an endpoint whose verbs no class in Python overrides.

@cython.final
cdef class Direct(Endpoint):
    """An endpoint whose verbs are not overridden. Only its table of C methods is used."""

    cpdef bint failed(self, u64 addr) noexcept:
        return do_failed(self, addr)

    cpdef int read_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        return do_read_words(self, addr, &words[0], words.shape[0], count, start, True)

    cpdef int post_read(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        return do_read_words(self, addr, &words[0], words.shape[0], count, start, False)

    cpdef u64 read_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        cdef u64 found = tagged_together(
            self, first, second, &words[0], words.shape[0], start, tag, True
        )
        if unlikely(found == APART, 0):
            return tagged_apart(self, first, second, &words[0], words.shape[0], start, tag, True)
        return found

    cpdef u64 post_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        cdef u64 found = tagged_together(
            self, first, second, &words[0], words.shape[0], start, tag, False
        )
        if unlikely(found == APART, 0):
            return tagged_apart(self, first, second, &words[0], words.shape[0], start, tag, False)
        return found

    cpdef void prefetch(self, u64 addr, u64 size, bint writes=False) noexcept:
        do_prefetch(self, addr, size, writes)

    cpdef int write_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        return do_write_gather(self, addr, &words[0], words.shape[0], count, first, second)

    cpdef int post_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        return do_write_gather(self, addr, &words[0], words.shape[0], count, first, second)

    cpdef int write_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        return do_write_words(self, addr, &words[0], words.shape[0], count, start)

    cpdef int post_write(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        return do_write_words(self, addr, &words[0], words.shape[0], count, start)

    cpdef u64 load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        return do_load(self, addr, True)

    cpdef u64 post_load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        return do_load(self, addr, False)

    cpdef int store(self, u64 addr, u64 value) except -1:
        return do_store(self, addr, value)

    cpdef int store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        if unlikely(
            not stored_together(self, addr, value, then_addr, then_value, self._scope(addr)), 0
        ):
            return stored_apart(self, addr, value, then_addr, then_value)
        return 0

    cpdef u64 swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        return do_swap(self, addr, value, True)

    cpdef u64 post_swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        return do_swap(self, addr, value, False)

    cpdef bint pin(
        self, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops
    ) except -1:
        cdef int same = pinned_together(self, pin_at, pin, epoch_at, epoch, drops_at, drops)
        if unlikely(same < 0, 0):
            return pinned_otherwise(self, pin_at, pin, epoch_at, epoch, drops_at, drops)
        return same

    cpdef u64 glance(self, u64 stamp_at, u64 slot, u64 word) except? 0xFEEDFACEDEADBEA7:
        cdef u64 stamp = 0
        if unlikely(not glanced_together(self, stamp_at, slot, word, &stamp), 0):
            return glanced_apart(self, stamp_at, slot, word)
        return stamp

    cpdef bint stands(
        self, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer, u64 drops_at,
        u64 drops
    ) except -1:
        if stands_together(self, slot, word, stamp_at, stamp, entry, pointer, drops_at, drops):
            return True
        return stands_apart(self, slot, word, stamp_at, stamp, entry, pointer, drops_at, drops)

    cpdef u64 cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        return do_cas(self, addr, expected, desired, True)

    cpdef u64 post_cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        return do_cas(self, addr, expected, desired, False)

    cpdef u64 post_cas_if(
        self, u64 first, u64 wanted, u64 addr, u64 expected, u64 desired
    ) except? 0xFEEDFACEDEADBEA7:
        return do_cas(self, addr, expected, desired, False) if first == wanted else ~expected

    cpdef u64 faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        return do_faa(self, addr, delta, True)

    cpdef u64 post_faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        return do_faa(self, addr, delta, False)

    cpdef u64 fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        return do_fetch_or(self, addr, bits, True)

    cpdef u64 post_fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        return do_fetch_or(self, addr, bits, False)

    cpdef u64 mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        return do_mcas(self, addr, compare, swap, compare_mask, swap_mask, True)

    cpdef u64 post_mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        return do_mcas(self, addr, compare, swap, compare_mask, swap_mask, False)

    cpdef int post_set(self, u64 addr, u64 bits) except -1:
        return do_set(self, addr, bits)

    cpdef int send_clear(self, u64 addr, u64 bits) except -1:
        return do_send_clear(self, addr, bits)

    cpdef int send_store(self, u64 addr, u64 value) except -1:
        return do_send_store(self, addr, value)

    cpdef int send_store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        cdef Counters* scope = &self._scopes[2 if addr >= CONTROL else 1]
        self._message(addr)
        if unlikely(not stored_together(self, addr, value, then_addr, then_value, scope), 0):
            do_send_store(self, addr, value)
            return do_send_store(self, then_addr, then_value)
        return 0

    cpdef int send_words(self, u64 addr, u64[::1] words, Py_ssize_t count) except -1:
        return send_apart(self, addr, words, count)

    cpdef u64 result(self, u64 ticket) except? 0xFEEDFACEDEADBEA7:
        return ticket

    cpdef int wait(self) except -1:
        return do_wait(self)

    cpdef bint begin(self) except -1:
        return do_begin(self)

    cpdef int end(self) except -1:
        return do_end(self)

    cpdef bint background(self, bint on) noexcept:
        return do_background(self, on)

    cpdef int dirty(self, u64 addr, u64 size) except -1:
        return do_dirty(self, addr, size)

    cpdef int flush(self, u64 addr, u64 size) except -1:
        return do_flush(self, addr, size)

    cpdef int persist(self) except -1:
        return do_persist(self)
