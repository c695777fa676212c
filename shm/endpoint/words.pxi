# Part of verbs.pyx: words that are in private buffers. Nothing here touches shared memory.

cpdef u64 hash64(bytes data, u64 seed=0):
    """XXH64 of `data`."""
    if data is None:
        raise TypeError("hash64 takes bytes, not None")
    return limpet_hash64(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), seed)


cpdef u64 checksum(bytes data, u64 seed=0):
    """XXH64 of `data`, or from 1 KiB on XXH3, which is several times as fast there."""
    if data is None:
        raise TypeError("checksum takes bytes, not None")
    return checksum_of(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), seed)


def checksum_buffer(buffer, u64 seed=0):
    """The same of a bytes-like object, which stays as it is meanwhile."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return checksum_of(<const unsigned char*>view.buf, view.len, seed)
    finally:
        PyBuffer_Release(&view)


cdef u64 checksum_of(const unsigned char* data, u64 size, u64 seed):
    """The same of memory that stays as it is meanwhile."""
    cdef u64 found
    if size < 1024:
        return limpet_hash64(data, size, seed)
    if size < LIMPET_LONG:
        return limpet_xxh3_long(data, size, seed)
    with nogil:
        found = limpet_xxh3_long(data, size, seed)
    return found


cpdef u64 crc_pair(u64[::1] words, Py_ssize_t start, Py_ssize_t count, bint hardware=True) except? 0:
    """Two CRC-32C in one word: of `count` words from `start` on (bits 0-31), and of their products
    with an odd number (bits 32-63); 0 for zeros. `hardware` False: not by the CPU's instruction.
    """
    if start < 0 or count < 0 or count > words.shape[0] - start:
        raise AddressError(f"{count} words from word {start} on are outside of the buffer")
    return limpet_crc_pair(&words[0] + start, count, hardware and _has_crc) if count else 0


cpdef u64 bit(int index) noexcept:
    """The word with only bit `index` (0 to 63) set."""
    return 1ULL << index


cpdef int lowest_bit(u64 word) noexcept:
    """Index of the lowest set bit; `word` must not be 0."""
    return ctzll(word)


cpdef bint fits_word(number) noexcept:
    """Whether this is an int (no other type) from -2**63 to 2**63 - 1."""
    cdef int beyond = 0
    if not PyLong_CheckExact(number):
        return False
    PyLong_AsLongLongAndOverflow(number, &beyond)
    return beyond == 0


cpdef bint words_equal(u64[::1] words, Py_ssize_t offset, bytes data) noexcept:
    """Whether the bytes of `words` from byte `offset` on begin with `data`."""
    if offset < 0 or data is None or PyBytes_GET_SIZE(data) > words.shape[0] * 8 - offset:
        return False
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    return size == 0 or memcmp(<char*>&words[0] + offset, PyBytes_AS_STRING(data), size) == 0


cpdef bytes words_bytes(u64[::1] words, Py_ssize_t offset, Py_ssize_t size):
    """`size` bytes of `words` from byte `offset` on."""
    if offset < 0 or size < 0 or size > words.shape[0] * 8 - offset:
        raise AddressError(f"{size} bytes from byte {offset} on are outside of the buffer")
    return PyBytes_FromStringAndSize(<char*>&words[0] + offset, size) if size else b""


cpdef int words_put(u64[::1] words, Py_ssize_t offset, bytes data, Py_ssize_t size) except -1:
    """Put `data` into `words`, at byte `offset`, and zeros after it up to `size` bytes."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data) if data is not None else -1
    if not 0 <= length <= size or offset < 0 or size > words.shape[0] * 8 - offset:
        raise AddressError(f"{size} bytes at byte {offset} are outside of the buffer, or too few")
    if size:
        memcpy(<char*>&words[0] + offset, PyBytes_AS_STRING(data), length)
        memset(<char*>&words[0] + offset + length, 0, size - length)
    return 0


cpdef int words_compare(u64[::1] words, Py_ssize_t offset, Py_ssize_t size, bytes data) except -2:
    """-1, 0 or 1: those `size` bytes of `words` sort before `data`, are it, or sort after it."""
    if data is None or offset < 0 or size < 0 or size > words.shape[0] * 8 - offset:
        raise AddressError(f"{size} bytes from byte {offset} on are outside of the buffer")
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t common = size if size < length else length
    cdef int order = 0
    if common:
        order = memcmp(<char*>&words[0] + offset, PyBytes_AS_STRING(data), common)
    if order == 0:
        order = (size > length) - (size < length)
    return (order > 0) - (order < 0)


cpdef u64 words_tagged(u64[::1] words, Py_ssize_t start, Py_ssize_t count, u64 tag) except? 0:
    """Which of `count` words, at most 64, from `start` on have `tag` in bits 56-63: as bits."""
    if unlikely(not 0 <= count <= 64 or start < 0 or count > words.shape[0] - start, 0):
        return no_tags(start, count)
    return limpet_tagged(&words[0] + start, count, <unsigned char>tag) if count else 0


cpdef void words_prefetch(u64[::1] words, Py_ssize_t index) noexcept:
    """A hint: word `index` may be read soon. Any index will do."""
    if 0 <= index < words.shape[0]:
        prefetch_line(&words[index], 0)


cpdef Py_ssize_t keys_below(list keys, bytes key, bint with_it) except -1:
    """How many of `keys`, bytes in ascending order, are below `key`; `with_it`: or are it."""
    if keys is None or key is None:
        raise TypeError("keys_below takes a list and bytes, not None")
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = len(keys)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t middle, size
    cdef int order
    while low < high:
        middle = (low + high) >> 1
        each = keys[middle]
        if type(each) is not bytes:
            raise TypeError("keys_below takes a list of bytes")
        size = PyBytes_GET_SIZE(each)
        order = memcmp(PyBytes_AS_STRING(each), PyBytes_AS_STRING(key), min(size, length))
        if order == 0:
            order = (size > length) - (size < length)
        if order < 0 or (order == 0 and with_it):
            low = middle + 1
        else:
            high = middle
    return low


cpdef int words_move(u64[::1] words, Py_ssize_t target, Py_ssize_t start, Py_ssize_t size) except -1:
    """Move `size` bytes of `words` from byte `start` to byte `target`; they may overlap."""
    cdef Py_ssize_t room = words.shape[0] * 8
    if size < 0 or not 0 <= target <= room - size or not 0 <= start <= room - size:
        raise AddressError(f"{size} bytes from byte {start} to {target} are outside of the buffer")
    if size:
        memmove(<char*>&words[0] + target, <char*>&words[0] + start, size)
    return 0
