# Part of verbs.pyx: the functions to which verbs leave rare cases and errors.

cdef u64 no_word(Endpoint endpoint, u64 addr) except? 0xFEEDFACEDEADBEA7:
    """Raise the error for the word at `addr`, which cannot be used."""
    endpoint._refuse(addr, 8)
    return 0xFEEDFACEDEADBEA7


cdef u64 lost_word(Endpoint endpoint, u64 addr) except? 0xFEEDFACEDEADBEA7:
    """Raise the error for the word at `addr`, which was accessed and is lost."""
    endpoint._mourn(addr >> 40)
    return 0xFEEDFACEDEADBEA7


cdef u64 expected_state(Endpoint endpoint, u64 node) noexcept:
    """The state word under which a node may be used, or read if it is torn."""
    cdef u64 state = endpoint._map[node].state
    return limpet_ranges[endpoint._range[node]].state if state == TORN else state


cdef inline bint is_torn(Endpoint endpoint, u64 addr) noexcept:
    """Whether this endpoint has met lost pages of the node."""
    return endpoint._map[addr >> 40 & 0xFF].state == TORN


cdef Mapped* torn_at(Endpoint endpoint, u64 addr, u64 size) noexcept:
    """The mapping with `size` bytes at `addr`, if pages of its node are lost and these are not
    among them; else NULL. From now on nothing on a torn node is changed."""
    cdef u64 node = addr >> 40
    cdef u64 offset = addr & OFFSET_MASK
    cdef Mapped* mapped = &endpoint._map[node & 0xFF]
    if node > 255 or mapped.base == NULL or mapped.lost[0] != LIMPET_TORN:
        return NULL
    if mapped.state != TORN:
        limpet_ranges[endpoint._range[node]].state = mapped.state
        mapped.state = TORN
        if not endpoint.met_loss:
            endpoint.met_loss = LOSS_MET
    if (<volatile u64*>endpoint._states)[node] != expected_state(endpoint, node):
        return NULL
    if endpoint._incoherent:
        return NULL
    if offset >= mapped.size or size > mapped.size - offset:
        return NULL
    if limpet_is_torn(endpoint._range[node], mapped.base + offset, size):
        return NULL
    return mapped


cdef int read_torn(
    Endpoint endpoint, u64 addr, char* target, u64 size, bint look
) except -1:
    """A read that failed, as its node cannot be used or is lost: done anew if the node is torn and
    what is read is not lost."""
    cdef Mapped* mapped = torn_at(endpoint, addr, size)
    if mapped != NULL:
        limpet_copy_out(target, mapped.base + (addr & OFFSET_MASK), size)
        # ORDER: looked at after the access, as always.
        if torn_at(endpoint, addr, size) != NULL:
            endpoint._reads(addr, size, look)
            return 0
    if addr >> 40 < 256 and endpoint._map[addr >> 40].base != NULL and endpoint._map[addr >> 40].lost[0]:
        return endpoint._mourn(addr >> 40)
    return endpoint._refuse(addr, size)


cdef u64 load_torn(Endpoint endpoint, u64 addr, bint look) except? 0xFEEDFACEDEADBEA7:
    """`read_torn` of a word."""
    cdef u64 value = 0
    if addr & 7:
        return no_word(endpoint, addr)
    read_torn(endpoint, addr, <char*>&value, 8, look)
    return value


cdef int no_buffer(
    u64 addr, Py_ssize_t room, Py_ssize_t count, Py_ssize_t start, bint writes
) except -1:
    """Raise the error for words outside of a buffer, or for an unaligned target address."""
    if writes:
        raise AddressError(
            f"cannot write {count} words, from word {start} on of {room}, to {addr:#x}"
        )
    raise AddressError(f"cannot read {count} words into a buffer of {room} from word {start} on")


cdef int no_gather(u64 addr, Py_ssize_t count, bytes first, bytes second) except -1:
    """Raise the error for a gather list, or for its target address."""
    if first is None or second is None:
        raise TypeError("expected bytes, not None")
    raise AddressError(f"cannot gather {count} words to {addr:#x}")


cdef u64 no_tags(Py_ssize_t start, Py_ssize_t count) except? 0:
    """Raise the error for so many words, which cannot be looked at."""
    raise AddressError(f"{count} words from word {start} on leave the buffer, or are over 64")


cdef int copy_long(Endpoint endpoint, u64 addr, char* private, u64 size, bint writes) except -1:
    """Copy `size` bytes of memory at `addr`, which was checked, into a private buffer, or, if
    `writes`, the other way, while other threads run. The buffer must stay as it is."""
    cdef u64 node = addr >> 40
    cdef char* base = endpoint._map[node].base
    cdef char* at = base + (addr & OFFSET_MASK)
    # an export of the mapping: if another thread detaches the node, it stays mapped until the end
    cdef object export = memoryview(endpoint._keep[node])
    with nogil:
        if writes:
            limpet_copy_long(at, private, size)
        else:
            limpet_copy_out(private, at, size)
    # ORDER: look at the node after the copy, as after every sleep.
    if unlikely(endpoint._map[node].base != base, 0):
        endpoint._at(addr, size)
        raise NodeFailed(node, FORMERLY)
    return 0


cdef u64 copy_summed(Endpoint endpoint, u64 addr, bytes value, u64 seed) except? 0:
    """Copy a long value to memory at `addr`, which was checked, while other threads run; its
    checksum."""
    cdef u64 node = addr >> 40
    cdef char* base = endpoint._map[node].base
    cdef char* at = base + (addr & OFFSET_MASK)
    cdef const unsigned char* data = <const unsigned char*>PyBytes_AS_STRING(value)
    cdef u64 size = PyBytes_GET_SIZE(value)
    cdef u64 digest
    # an export of the mapping, and a look at the node after the copy, as in `copy_long`
    cdef object export = memoryview(endpoint._keep[node])
    with nogil:
        digest = limpet_xxh3_copy(at, data, size, seed)
    if unlikely(endpoint._map[node].base != base, 0):
        endpoint._at(addr, size)
        raise NodeFailed(node, FORMERLY)
    return digest


cdef int read_at_length(
    Endpoint endpoint, u64 addr, Mapped* mapped, char* target, u64 size, bint look
) except -1:
    """`read_words` of many words, or of memory that may be incoherent or is not aligned."""
    if endpoint._incoherent and (addr & OFFSET_MASK) + size > mapped.coherent:
        endpoint.invalidate(addr, size)
    if size >= LIMPET_LONG:
        copy_long(endpoint, addr, target, size, False)
    else:
        limpet_copy_out(target, mapped.base + (addr & OFFSET_MASK), size)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return read_torn(endpoint, addr, target, size, look)
    endpoint._reads(addr, size, look)
    return 0


cdef u64 tagged_apart(
    Endpoint endpoint, u64 first, u64 second, u64* words, Py_ssize_t room, Py_ssize_t start, u64 tag,
    bint look,
) except? 0xFEEDFACEDEADBEA7:
    """`read_tagged` by its two verbs: where the first one may raise, or memory is not usual."""
    do_read_words(endpoint, first, words, room, 16, start, False)
    do_read_words(endpoint, second, words, room, 16, start + 16, look)
    return limpet_tagged(words + start, 32, <unsigned char>tag)


cdef int stored_apart(
    Endpoint endpoint, u64 addr, u64 value, u64 then_addr, u64 then_value
) except -1:
    """`store_two` by its verbs: where one may raise, or is a step that is looked at."""
    endpoint.store(addr, value)
    return endpoint.store(then_addr, then_value)


cdef int send_apart(Endpoint endpoint, u64 addr, u64[::1] words, Py_ssize_t count) except -1:
    """`send_words` by its verb."""
    cdef Counters* here = endpoint._here
    endpoint._here = &endpoint._scopes[1]
    try:
        endpoint.write_words(addr, words, count)
    finally:
        endpoint._here = here
    endpoint._message(addr)
    return 0


cdef bint pinned_apart(
    Endpoint endpoint, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops
) except -1:
    """`pin` by its verbs: where one may raise, or is a step that is looked at."""
    if endpoint.load(epoch_at) != epoch:
        return False
    endpoint.swap(pin_at, pin)
    return endpoint.load(drops_at) == drops


cdef u64 glanced_apart(
    Endpoint endpoint, u64 stamp_at, u64 slot, u64 word
) except? 0xFEEDFACEDEADBEA7:
    """`glance` by its verbs, counted as one look."""
    cdef Counters* here = endpoint._here
    endpoint._here = &endpoint._scopes[2]
    cdef u64 stamp
    cdef u64 looks = endpoint._scopes[2].looks
    try:
        stamp = endpoint.load(stamp_at)
        stamp = stamp if endpoint.load(slot) == word else 0
        endpoint._scopes[2].looks = looks + 1
        return stamp
    finally:
        endpoint._here = here


cdef bint stands_apart(
    Endpoint endpoint, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer,
    u64 drops_at, u64 drops
) except -1:
    """`stands` by its verbs, counted as one look."""
    limpet_used()
    cdef Counters* here = endpoint._here
    endpoint._here = &endpoint._scopes[2]
    cdef bint same
    cdef u64 looks = endpoint._scopes[2].looks
    try:
        same = (
            endpoint.load(slot) == word
            and endpoint.load(stamp_at) == stamp
            and endpoint.load(entry) == pointer
            and endpoint.load(drops_at) == drops
        )
        endpoint._scopes[2].looks = looks + 1
        return same
    finally:
        endpoint._here = here


cdef bint pinned_otherwise(
    Endpoint endpoint, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops
) except -1:
    """`pinned_apart`, counted as one look."""
    cdef Counters* scope = endpoint._scope(pin_at)
    cdef u64 looks = scope.looks
    cdef bint same = pinned_apart(endpoint, pin_at, pin, epoch_at, epoch, drops_at, drops)
    scope.looks = looks + 1
    return same


cdef inline int copy_piece(Endpoint endpoint, u64 addr, char* source, u64 size) except -1:
    """Copy a piece of a write to memory at `addr`, which was checked."""
    if size >= LIMPET_LONG and not endpoint._armed:
        return copy_long(endpoint, addr, source, size, True)
    return endpoint._copy(
        addr, endpoint._map[addr >> 40].base + (addr & OFFSET_MASK), source, size
    )


cdef int gather_step_by_step(
    Endpoint endpoint, u64 addr, char* at, char* words, u64 head, bytes first, bytes second
) except -1:
    """Write a gather list to `at` when each word may be a step, or memory may be incoherent, or the
    list is long."""
    cdef u64 n1 = PyBytes_GET_SIZE(first)
    cdef u64 n2 = PyBytes_GET_SIZE(second)
    cdef u64 whole = n1 & ~7ULL
    cdef u64 size = head + (n1 + 7 & ~7ULL) + n2
    cdef u64 last = 0
    endpoint._renew_edges(addr, size)
    endpoint._copy(addr, at, words, head)
    copy_piece(endpoint, addr + head, PyBytes_AS_STRING(first), whole)
    if n1 & 7:
        # the tail of `first` and the zeros as one word
        memcpy(&last, PyBytes_AS_STRING(first) + whole, n1 & 7)
        endpoint._copy(addr + head + whole, at + head + whole, <char*>&last, 8)
    copy_piece(endpoint, addr + (size - n2), PyBytes_AS_STRING(second), n2)
    if endpoint._incoherent and (addr & OFFSET_MASK) + size > endpoint._map[addr >> 40].coherent:
        endpoint.write_back(addr, size)
    return 0


cdef u64 outside_of_image(Image image, Py_ssize_t first, Py_ssize_t count) except? 0xFEEDFACEDEADBEA7:
    """Raise the error for words of an image that cannot be looked at."""
    image._refuse_words(first, count)
    return 0xFEEDFACEDEADBEA7


cdef bint await_turn(Endpoint endpoint) except -1:
    """Wait while another thread is inside. True: we are inside, in place of one that was cut off.

    A thread that has looked PATIENCE times sets `_awaited` while it sleeps, and others then let it
    go first, for POLITE looks: it may be slow, or have ended with the interpreter. Raises
    ReentrantUse when this thread is inside.
    """
    cdef int looks = 0
    cdef int yields = 0
    cdef bint ours
    while endpoint._busy or (endpoint._awaited and yields < POLITE):
        if not endpoint._busy:
            yields += 1
        elif endpoint._take_over():
            return True
        elif endpoint._owner == pthread_self():
            raise ReentrantUse("a limpet handle was used from inside one of its own operations")
        ours = looks >= PATIENCE and not endpoint._awaited
        endpoint._awaited = endpoint._awaited or ours
        with nogil:
            limpet_sleep_ns(20_000)
        if ours:
            endpoint._awaited = False
            if not endpoint._busy:
                break
        looks += 1
        PyErr_CheckSignals()
    return False
