# Part of verbs.pyx: the result of a read, which callers look at.

cdef inline bint is_within(Image image, Py_ssize_t offset, Py_ssize_t size) noexcept:
    """Whether these bytes are in an image, and the image is still mapped."""
    if unlikely(offset < 0 or size < 0 or size > image._size - offset, 0):
        return False
    return image._eras[0] == image._era


cdef inline bint has_words(Image image, Py_ssize_t first, Py_ssize_t count) noexcept:
    """The same for words, without a product that might wrap."""
    if unlikely(first < 0 or count < 0 or count > (image._size >> 3) - first, 0):
        return False
    return image._eras[0] == image._era


cdef inline const char* read_in_place(Image image, u64 addr, Py_ssize_t count) noexcept:
    """Where the words are that were read in place; NULL: that cannot be, so copy them."""
    cdef Endpoint endpoint = image.endpoint
    cdef u64 size = <u64>count * 8
    cdef Mapped* mapped
    if not image._in_place or not endpoint._plain:
        return NULL
    mapped = bytes_at(endpoint, addr, size)
    if unlikely(mapped == NULL or count < 1 or count > image.words.shape[0] or addr & 7, 0):
        return NULL
    if unlikely(endpoint._incoherent and (addr & OFFSET_MASK) + size > mapped.coherent, 0):
        return NULL
    image._at = mapped.base + (addr & OFFSET_MASK)
    image._size = size
    image._addr = addr
    image._lost = mapped.lost
    image._states = &endpoint._states[addr >> 40]
    image._state = mapped.state
    image._eras = &endpoint._era
    image._era = endpoint._era
    return image._at


cdef inline bint is_gone(Image image) noexcept:
    """Whether the memory of an image may have been lost before the last look at it."""
    limpet_used()
    return image._lost[0] != 0 or image._states[0] != image._state


cdef class Image:
    """Words that were read from memory: in place where that is safe, otherwise a copy.

    `in_place`: the words were linked when a client read them that had pinned before. So no client
    changes them, or uses their memory for anything else, until this client unpins; after that it
    does not look at the image any more. A client that reads without a pin proves afterwards that
    they did not change (stores/race/glance.py). The image is a copy all the same if its memory is not
    hardware-coherent, or if the verbs of the endpoint are overridden.

    `head`: the first word, as it was read.

    A read is one verb, `read_words`, for promises, errors and accounting. Memory that is looked at
    in place can be lost between two looks. So every method of an image may raise NodeFailed, too,
    or AddressError when the endpoint has detached a node since.

    `post` and `post_keyed` post the read: the image is looked at after the `wait` of the phase.
    """

    def __cinit__(self, Endpoint endpoint, Py_ssize_t size, bint in_place=False):
        if endpoint is None or size < 8 or size & 7:
            raise AddressError(f"an image of {size} bytes cannot be")
        self.endpoint = endpoint
        self.words = memoryview(bytearray(size)).cast("Q")
        self._in_place = in_place
        self._own = <const char*>&self.words[0]
        self._at = self._own
        self._size = size
        self.forget()

    cpdef int read(self, u64 addr, Py_ssize_t count) except -1:
        """Read the `count` words from `addr` on into the image."""
        cdef const char* at = read_in_place(self, addr, count)
        if at == NULL:
            self.forget()
            self.endpoint.read_words(addr, self.words, count)
            self.head = (<const u64*>self._own)[0]
            return 0
        self.head = (<const u64*>at)[0]
        if unlikely(is_gone(self), 0):
            self._mourn()
        self.endpoint._reads(addr, self._size, True)
        return 0

    cpdef int post(self, u64 addr, Py_ssize_t count) except -1:
        """Post `read`."""
        cdef const char* at = read_in_place(self, addr, count)
        self._matched = -1
        if at == NULL:
            self.forget()
            self.endpoint.post_image(self, addr, count)
            self.head = (<const u64*>self._own)[0]
            return 0
        self.head = (<const u64*>at)[0]
        if unlikely(is_gone(self), 0):
            self._mourn()
        self.endpoint._reads(addr, self._size, False)
        return 0

    cpdef int post_keyed(
        self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes data
    ) except -1:
        """Post `read`; then `matched` says, with the same arguments, what `read_keyed` returns."""
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        cdef const char* at = read_in_place(self, addr, count)
        if at == NULL:
            return self.post(addr, count)
        cdef u64 head = (<const u64*>at)[0]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        self.head = head
        cdef bint found = False
        if head & 0xFFFF == <u64>size and size <= self._size - offset:
            found = memcmp(at + offset, PyBytes_AS_STRING(data), size) == 0
        self._matched = found
        if unlikely(is_gone(self), 0):
            self._mourn()
        self.endpoint._reads(addr, self._size, False)
        return 0

    cpdef bint matched(self, Py_ssize_t offset, bytes data) except -1:
        """After `post_keyed` and `wait`: whether bits 0-15 of the first word are the size of
        `data`, which is what begins at byte `offset`."""
        if self._matched >= 0:
            return self._matched
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        if self.word(0) & 0xFFFF != <u64>PyBytes_GET_SIZE(data):
            return False
        return self.equal(offset, data)

    cpdef int close(self) except -1:
        """The image was posted: until `open`, any look at it raises PhaseError."""
        self._lost = &CLOSED
        return 0

    cpdef int open(self) except -1:
        """Its phase has ended: `words` are the image now."""
        self.forget()
        self.head = self.words[0]
        return 0

    cpdef bint read_keyed(
        self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes data
    ) except -1:
        """`read`; then, whether bits 0-15 of the first word are the size of `data`, which is what
        begins at byte `offset`."""
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        cdef const char* at = read_in_place(self, addr, count)
        if at == NULL:
            self.read(addr, count)
            at = self._at
        cdef u64 head = (<const u64*>at)[0]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        self.head = head
        cdef bint found = False
        if head & 0xFFFF == <u64>size and size <= self._size - offset:
            found = memcmp(at + offset, PyBytes_AS_STRING(data), size) == 0
        if unlikely(is_gone(self), 0):
            self._mourn()
        if at != self._own:
            self.endpoint._reads(addr, self._size, True)
        return found

    cpdef object pair(self, u64 addr, Py_ssize_t count, Py_ssize_t offset, bytes key):
        """A phase of its own: `read_keyed`; if the key is there, what follows it, padded to a
        multiple of 8: as many bytes as bits 16-63 of the first word say. None: it is not there."""
        self.post_keyed(addr, count, offset, key)
        self.endpoint.wait()
        if not self.matched(offset, key):
            return None
        offset += PyBytes_GET_SIZE(key) + 7 & ~7
        return self.cut(offset, self.head >> 16)

    cdef int _refuse(self, Py_ssize_t offset, Py_ssize_t size) except -1:
        if self._eras[0] != self._era:
            raise AddressError("the memory that was read is not mapped any more")
        raise AddressError(f"{size} bytes from byte {offset} on are outside of the image")

    cdef int _refuse_words(self, Py_ssize_t first, Py_ssize_t count) except -1:
        if self._eras[0] != self._era:
            raise AddressError("the memory that was read is not mapped any more")
        raise AddressError(f"{count} words from word {first} on are outside of the image")

    cdef int _mourn(self) except -1:
        if self._lost == &CLOSED:
            raise PhaseError("an object was looked at before `wait`: its read is only posted")
        return self.endpoint._mourn(self._addr >> 40)

    cpdef u64 word(self, Py_ssize_t index) except? 0xFEEDFACEDEADBEA7:
        """A word of it."""
        if unlikely(not has_words(self, index, 1), 0):
            return outside_of_image(self, index, 1)
        cdef u64 found = (<const u64*>self._at)[index]
        if unlikely(is_gone(self), 0):
            self._mourn()
        return found

    cpdef u64 number(self, Py_ssize_t offset) except? 0xFEEDFACEDEADBEA7:
        """The 8 bytes of it from byte `offset` on, as a number."""
        cdef u64 found
        if not is_within(self, offset, 8):
            self._refuse(offset, 8)
        memcpy(&found, self._at + offset, 8)
        if unlikely(is_gone(self), 0):
            self._mourn()
        return found

    cpdef bint equal(self, Py_ssize_t offset, bytes data) except -1:
        """Whether its bytes from byte `offset` on begin with `data`."""
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size > self._size - offset:
            return False
        if not is_within(self, offset, size):
            self._refuse(offset, size)
        cdef bint found = memcmp(self._at + offset, PyBytes_AS_STRING(data), size) == 0
        if unlikely(is_gone(self), 0):
            self._mourn()
        return found

    cpdef bytes cut(self, Py_ssize_t offset, Py_ssize_t size):
        """`size` bytes of it from byte `offset` on."""
        if not is_within(self, offset, size):
            self._refuse(offset, size)
        cdef bytes found = PyBytes_FromStringAndSize(self._at + offset, size)
        if unlikely(is_gone(self), 0):
            self._mourn()
        return found

    cpdef int compare(self, Py_ssize_t offset, Py_ssize_t size, bytes data) except -2:
        """-1, 0 or 1: those `size` bytes of it sort before `data`, are it, or sort after it."""
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        if not is_within(self, offset, size):
            self._refuse(offset, size)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
        cdef int order = memcmp(self._at + offset, PyBytes_AS_STRING(data), min(size, length))
        if unlikely(is_gone(self), 0):
            self._mourn()
        if order == 0:
            order = (size > length) - (size < length)
        return (order > 0) - (order < 0)

    # Below, a word names one or two pieces: bits 0-15 byte of the first one, bits 16-31 its size;
    # bits 32-47 size of the second one, which follows it.

    cpdef int search(self, Py_ssize_t first, Py_ssize_t count, bytes data) except? -1:
        """The place of `data` among `count` pieces in ascending order; if it is not there, ~ the
        place where it would be.

        Each word from `first` on names one.
        """
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        if not has_words(self, first, count):
            self._refuse_words(first, count)
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = count
        cdef Py_ssize_t middle, at, size
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
        cdef u64 slot
        cdef int order
        cdef bint exact = False
        while low < high and not exact:
            middle = (low + high) >> 1
            slot = (<const u64*>self._at)[first + middle]
            at = slot & 0xFFFF
            size = slot >> 16 & 0xFFFF
            if not is_within(self, at, size):
                self._refuse(at, size)
            order = memcmp(self._at + at, PyBytes_AS_STRING(data), min(size, length))
            if order == 0:
                order = (size > length) - (size < length)
            if order < 0:
                low = middle + 1
            else:
                high = middle
                exact = order == 0
        if unlikely(is_gone(self), 0):
            self._mourn()
        return high if exact else ~low

    cpdef u64 named(self, Py_ssize_t index, bytes data) except? 0:
        """The word `index`, if the first piece that it names is `data`; else 0."""
        if unlikely(data is None, 0):
            raise TypeError("expected bytes, not None")
        if not has_words(self, index, 1):
            self._refuse_words(index, 1)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef u64 slot = (<const u64*>self._at)[index]
        cdef Py_ssize_t at = slot & 0xFFFF
        cdef bint found = False
        if <Py_ssize_t>(slot >> 16 & 0xFFFF) == size:
            if not is_within(self, at, size):
                self._refuse(at, size)
            found = memcmp(self._at + at, PyBytes_AS_STRING(data), size) == 0
        if unlikely(is_gone(self), 0):
            self._mourn()
        return slot if found else 0

    cpdef int pairs(self, Py_ssize_t first, Py_ssize_t count, list found) except -1:
        """Append both pieces that each word from `first` on names, up to `count` times, or to a
        word with any of the bits from 48 on; how many were appended."""
        cdef Py_ssize_t index = 0
        cdef Py_ssize_t at, size, behind
        cdef u64 slot
        if not has_words(self, first, count):
            self._refuse_words(first, count)
        while index < count:
            slot = (<const u64*>self._at)[first + index]
            if slot >> 48:
                break
            at = slot & 0xFFFF
            size = slot >> 16 & 0xFFFF
            behind = slot >> 32
            if not is_within(self, at, size + behind):
                self._refuse(at, size + behind)
            found.append(
                (
                    PyBytes_FromStringAndSize(self._at + at, size),
                    PyBytes_FromStringAndSize(self._at + at + size, behind),
                )
            )
            index += 1
        if unlikely(is_gone(self), 0):
            self._mourn()
        return index

    cpdef Py_ssize_t copy_pieces(
        self, Py_ssize_t first, Py_ssize_t count, u64[::1] words, Py_ssize_t place, Py_ssize_t end
    ) except -1:
        """Copy both pieces that each of `count` words from `first` on names to `words`: those of
        the first one before byte `end`, the others before these; and such words for them, from word
        `place` on. The byte at which the copies begin; 0: there is no room for the next one.

        Bits 48 and up are copied, too.
        """
        cdef Py_ssize_t index, at, size
        cdef u64 slot
        if not has_words(self, first, count):
            self._refuse_words(first, count)
        if place < 0 or not 0 <= end <= words.shape[0] * 8:
            raise AddressError(f"{count} pieces before byte {end} are outside of the buffer")
        for index in range(count):
            slot = (<const u64*>self._at)[first + index]
            at = slot & 0xFFFF
            size = (slot >> 16 & 0xFFFF) + (slot >> 32 & 0xFFFF)
            if not is_within(self, at, size):
                self._refuse(at, size)
            end -= size
            if end < 8 * (place + count):
                return 0
            memcpy(<char*>&words[0] + end, self._at + at, size)
            words[place + index] = slot & ~0xFFFFULL | <u64>end
        if unlikely(is_gone(self), 0):
            self._mourn()
        return end

    cpdef Py_ssize_t insert_pieces(
        self,
        Py_ssize_t first,
        Py_ssize_t count,
        Py_ssize_t index,
        Py_ssize_t heap,
        bytes key,
        bytes value,
        u64 flags,
    ) except -1:
        """Insert two pieces, and the word that names them, with these flags, as number `index` of
        the `count` from `first` on; their byte, which is just before `heap`. The image is a copy
        from then on."""
        if unlikely(key is None or value is None, 0):
            raise TypeError("expected bytes, not None")
        self.own()
        cdef Py_ssize_t before = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t behind = PyBytes_GET_SIZE(value)
        cdef char* own = <char*>self._own
        cdef u64* word = <u64*>own + first + index
        if (
            not 0 <= index <= count
            or first < 0
            or heap > self._size
            or heap - before - behind < 8 * (first + count + 1)
        ):
            raise AddressError(
                f"{before + behind} bytes before byte {heap} are outside of the image"
            )
        heap -= before + behind
        memcpy(own + heap, PyBytes_AS_STRING(key), before)
        memcpy(own + heap + before, PyBytes_AS_STRING(value), behind)
        memmove(word + 1, word, 8 * (count - index))
        word[0] = <u64>heap | <u64>before << 16 | <u64>behind << 32 | flags
        return heap

    cpdef Py_ssize_t remove_pieces(
        self, Py_ssize_t first, Py_ssize_t count, Py_ssize_t index, Py_ssize_t heap
    ) except -1:
        """Remove both pieces that word `index` of the `count` from `first` on names, and the word;
        close the gaps. `heap`: the byte at which the lowest piece begins; where it does now. The
        image is a copy from then on."""
        self.own()
        cdef char* own = <char*>self._own
        cdef u64* words = <u64*>own + first
        cdef Py_ssize_t offset, size, place
        if not 0 <= index < count or first < 0 or not 8 * (first + count) <= heap <= self._size:
            raise AddressError(f"word {index} of {count} is outside of the image")
        offset = words[index] & 0xFFFF
        size = (words[index] >> 16 & 0xFFFF) + (words[index] >> 32 & 0xFFFF)
        if not heap <= offset <= self._size - size:
            raise AddressError(f"{size} bytes from byte {offset} on are outside of the image")
        memmove(own + heap + size, own + heap, offset - heap)
        memmove(words + index, words + index + 1, 8 * (count - index - 1))
        for place in range(count - 1):
            # Pieces without any bytes may begin where the removed ones do, and move, too (R12).
            if <Py_ssize_t>(words[place] & 0xFFFF) <= offset:
                words[place] += size
        return heap + size

    cpdef int own(self) except -1:
        """Copy the image into `words`, which may be changed from now on and is the image then."""
        if self._at != self._own:
            if not is_within(self, 0, self._size):
                self._refuse(0, self._size)
            memcpy(<char*>self._own, self._at, self._size)
            if unlikely(is_gone(self), 0):
                self._mourn()
            self.forget()
        return 0

    cpdef int forget(self) except -1:
        """Make `words`, as they are, the image."""
        self._at = self._own
        self._size = self.words.shape[0] * 8
        self._lost = &NOT_LOST
        self._states = NO_STATES
        self._state = 0
        self._eras = &NO_ERA
        self._era = 0
        return 0
