# Part of verbs.pyx: memory as a buffer, without an endpoint.

cdef class Watched:
    """A writable mapping as a buffer; SIGBUS is watched as long as a caller has that buffer.

    For code that looks at memory without an endpoint, also after an endpoint has detached it. When
    the memory is lost, the buffer has zeros of this process's own. `fd`: as `Endpoint.attach` takes
    it; a copy of it is kept.
    """

    cdef object _keep
    cdef char* _base
    cdef Py_ssize_t _size
    cdef int _range

    def __cinit__(self, mapping, Py_ssize_t size, int fd=-1):
        cdef Py_buffer view
        self._range = -1
        PyObject_GetBuffer(mapping, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self._base = <char*>view.buf
        self._size = size
        PyBuffer_Release(&view)
        if size < 1 or view.len < size:
            raise AddressError(f"{size} bytes are not within the mapping")
        self._keep = memoryview(mapping)
        if fd >= 0:
            fd = os.dup(fd)
        self._range = limpet_watch_range(self._base, size, fd, 1)
        if self._range < 0:
            if fd >= 0:
                os.close(fd)
            raise AddressError("this process has too many memory nodes mapped")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._base, self._size, 0, flags)

    def __dealloc__(self):
        if self._range >= 0:
            limpet_close_range(self._range)


cdef class Lent:
    """`size` bytes of a writable mapping from `offset` on, lent to a caller until `end`. An export
    of the mapping."""

    cdef Py_buffer _mapping
    cdef char* _at
    cdef Py_ssize_t _size
    cdef bint _writable
    cdef bint _ended
    cdef Py_ssize_t _buffers

    def __cinit__(self, mapping, u64 offset, u64 size, bint writable):
        PyObject_GetBuffer(mapping, &self._mapping, PyBUF_SIMPLE | PyBUF_WRITABLE)
        if offset > <u64>self._mapping.len or size > self._mapping.len - offset:
            raise AddressError(f"{size} bytes from byte {offset} on are not within the mapping")
        self._at = <char*>self._mapping.buf + offset
        self._size = size
        self._writable = writable

    def memory(self):
        """The memory, as a memoryview."""
        return memoryview(self)

    def end(self):
        """Give out no more buffers; whether nothing has one any longer."""
        self._ended = True
        return not self._buffers

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self._ended:
            raise BufferError("this memory was lent, and was taken back")
        PyBuffer_FillInfo(buffer, self, self._at, self._size, not self._writable, flags)
        self._buffers += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self._buffers -= 1

    def __dealloc__(self):
        PyBuffer_Release(&self._mapping)


cdef char* word_of(mapping, Py_ssize_t offset, Py_buffer* view) except NULL:
    """The aligned word `offset` bytes into a writable mapping, until `view` is released."""
    PyObject_GetBuffer(mapping, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    cdef char* at = <char*>view.buf + offset
    if not 0 <= offset <= view.len - 8 or <u64>at & 7:
        PyBuffer_Release(view)
        raise AddressError(f"there is no word {offset} bytes into the mapping")
    return at


def buffer_load(mapping, Py_ssize_t offset) -> int:
    """The word `offset` bytes into a mapping, for code without an endpoint: `Endpoint.load`."""
    cdef Py_buffer view
    cdef u64 word = limpet_load(word_of(mapping, offset, &view))
    PyBuffer_Release(&view)
    return word


def buffer_store(mapping, Py_ssize_t offset, u64 word):
    """Likewise `Endpoint.store`."""
    cdef Py_buffer view
    limpet_store(word_of(mapping, offset, &view), word)
    PyBuffer_Release(&view)


def buffer_cas(mapping, Py_ssize_t offset, u64 expected, u64 desired) -> int:
    """Likewise `Endpoint.cas`; the old word."""
    cdef Py_buffer view
    cdef u64 old = limpet_cas(word_of(mapping, offset, &view), expected, desired)
    PyBuffer_Release(&view)
    return old
