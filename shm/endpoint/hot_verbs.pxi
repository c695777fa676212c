# Part of verbs.pyx: the verbs of which operations consist. Both `Endpoint` and `Direct` have them
# as methods. Each verb is checked, done, checked again and counted. A rare case ends with `return`
# of a function of its own (rare.pxi), so that the usual path has no call in it and saves no
# register. `look`: whether the result is looked at at once; not that of a posted verb.

cdef inline bint do_failed(Endpoint endpoint, u64 addr) noexcept:
    return (
        addr < CONTROL
        and endpoint._states[addr >> 40] != endpoint._map[addr >> 40].state
        and endpoint._states[addr >> 40] != expected_state(endpoint, addr >> 40)
    )


cdef inline int do_read_words(
    Endpoint endpoint, u64 addr, u64* words, Py_ssize_t room, Py_ssize_t count, Py_ssize_t start,
    bint look,
) except -1:
    if unlikely(count < 1 or start < 0 or count > room - start, 0):
        return no_buffer(addr, room, count, start, False)
    cdef u64 size = <u64>count * 8
    cdef Mapped* mapped = bytes_at(endpoint, addr, size)
    if unlikely(mapped == NULL, 0):
        return read_torn(endpoint, addr, <char*>(words + start), size, look)
    if unlikely(endpoint._incoherent or count > LIMPET_WORDWISE or addr & 7, 0):
        return read_at_length(endpoint, addr, mapped, <char*>(words + start), size, look)
    limpet_copy_words(words + start, mapped.base + (addr & OFFSET_MASK), count)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return read_torn(endpoint, addr, <char*>(words + start), size, look)
    endpoint._reads(addr, size, look)
    return 0


# Several verbs in one call: these do all of them, or say that they have to be done apart.

cdef inline u64 tagged_together(
    Endpoint endpoint, u64 first, u64 second, u64* words, Py_ssize_t room, Py_ssize_t start, u64 tag,
    bint look,
) noexcept:
    """`read_tagged`; APART: not done."""
    cdef Mapped* mapped = bytes_at(endpoint, first, 128)
    if unlikely((first ^ second) >> 40 or mapped == NULL or endpoint._incoherent, 0):
        return APART
    # one node, whose state was looked at: the other offset is what is left to check
    if unlikely((second & OFFSET_MASK) + 128 > mapped.size or (first | second) & 7, 0):
        return APART
    if unlikely(start < 0 or start > room - 32, 0):
        return APART
    words += start
    cdef u64 found = limpet_copy_tagged(
        words, mapped.base + (first & OFFSET_MASK), <unsigned char>tag
    )
    found |= limpet_copy_tagged(
        words + 16, mapped.base + (second & OFFSET_MASK), <unsigned char>tag
    ) << 16
    limpet_used()
    if unlikely(is_lost(endpoint, first, mapped), 0):
        return APART
    cdef Counters* scope = endpoint._scope(first)
    scope.reads += 2
    scope.bytes_read += 256
    scope.looks += look
    return found


cdef inline void do_prefetch(Endpoint endpoint, u64 addr, u64 size, bint writes) noexcept:
    cdef u64 node = addr >> 40
    cdef u64 offset = addr & OFFSET_MASK
    cdef const char* line
    cdef const char* end
    if node < 256 and offset < endpoint._map[node].size:
        line = endpoint._map[node].base + (offset & ~63ULL)
        end = endpoint._map[node].base + offset + min(size, endpoint._map[node].size - offset)
        if writes:
            while line < end:
                prefetch_line(line, 1)
                line += 64
        else:
            while line < end:
                prefetch_line(line, 0)
                line += 64


cdef inline int do_write_gather(
    Endpoint endpoint, u64 addr, u64* words, Py_ssize_t room, Py_ssize_t count, bytes first, bytes second
) except -1:
    if unlikely(first is None or second is None or count < 0 or count > room or addr & 7, 0):
        return no_gather(addr, count, first, second)
    cdef u64 head = <u64>count * 8
    cdef u64 n1 = PyBytes_GET_SIZE(first)
    cdef u64 n2 = PyBytes_GET_SIZE(second)
    cdef u64 size = head + (n1 + 7 & ~7ULL) + n2
    cdef Mapped* mapped = bytes_at(endpoint, addr, size)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, size)
    cdef char* at = mapped.base + (addr & OFFSET_MASK)
    if unlikely(endpoint._incoherent or endpoint._armed or size >= LIMPET_LONG, 0):
        gather_step_by_step(endpoint, addr, at, <char*>words, head, first, second)
    else:
        limpet_copy_in(at, words, head)
        limpet_copy_padded(at + head, PyBytes_AS_STRING(first), n1)
        limpet_copy_in(at + (size - n2), PyBytes_AS_STRING(second), n2)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._writes(addr, size)
    return 0


cdef inline int do_write_words(
    Endpoint endpoint, u64 addr, u64* words, Py_ssize_t room, Py_ssize_t count, Py_ssize_t start
) except -1:
    if unlikely(count < 1 or start < 0 or count > room - start or addr & 7, 0):
        return no_buffer(addr, room, count, start, True)
    cdef u64 size = <u64>count * 8
    cdef Mapped* mapped = bytes_at(endpoint, addr, size)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, size)
    cdef char* at = mapped.base + (addr & OFFSET_MASK)
    if unlikely(endpoint._incoherent, 0):
        endpoint._renew_edges(addr, size)
        endpoint._copy(addr, at, <char*>(words + start), size)
        if (addr & OFFSET_MASK) + size > mapped.coherent:
            endpoint.write_back(addr, size)
    else:
        endpoint._copy(addr, at, <char*>(words + start), size)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._writes(addr, size)
    return 0


cdef inline u64 do_load(Endpoint endpoint, u64 addr, bint look) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return load_torn(endpoint, addr, look)
    cdef u64 value = limpet_load(mapped.base + (addr & OFFSET_MASK))
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return load_torn(endpoint, addr, look)
    endpoint._reads(addr, 8, look)
    return value


cdef inline int do_store(Endpoint endpoint, u64 addr, u64 value) except -1:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, 8)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    limpet_store(mapped.base + (addr & OFFSET_MASK), value)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._writes(addr, 8)
    return 0


cdef inline bint stored_together(
    Endpoint endpoint, u64 addr, u64 value, u64 then_addr, u64 then_value, Counters* scope
) noexcept:
    """`store_two`, counted in this scope; False: not done."""
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely((addr ^ then_addr) >> 40 or then_addr & 7 or mapped == NULL, 0):
        return False
    if unlikely(then_addr & OFFSET_MASK >= mapped.coherent or endpoint._armed, 0):
        return False
    limpet_store(mapped.base + (addr & OFFSET_MASK), value)
    limpet_store(mapped.base + (then_addr & OFFSET_MASK), then_value)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return False
    scope.writes += 2
    scope.bytes_written += 16
    return True


cdef inline u64 do_swap(
    Endpoint endpoint, u64 addr, u64 value, bint look
) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return no_word(endpoint, addr)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    cdef u64 old = limpet_swap(mapped.base + (addr & OFFSET_MASK), value)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return lost_word(endpoint, addr)
    endpoint._atomics(addr, look)
    return old


cdef inline int pinned_together(
    Endpoint endpoint, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops
) noexcept:
    """`pin`; -1: not done."""
    cdef Mapped* mapped = word_at(endpoint, pin_at)
    if unlikely((epoch_at ^ pin_at | drops_at ^ pin_at) >> 40 or mapped == NULL, 0):
        return -1
    # one node, whose state was looked at: the other offsets are what is left to check
    if unlikely(max(epoch_at, drops_at) & OFFSET_MASK >= mapped.coherent, 0):
        return -1
    if unlikely((epoch_at | drops_at) & 7 or endpoint._armed, 0):
        return -1
    if unlikely(limpet_load(mapped.base + (epoch_at & OFFSET_MASK)) != epoch, 0):
        return -1
    limpet_swap(mapped.base + (pin_at & OFFSET_MASK), pin)
    cdef bint same = limpet_load(mapped.base + (drops_at & OFFSET_MASK)) == drops
    if unlikely(is_lost(endpoint, pin_at, mapped), 0):
        return -1
    cdef Counters* scope = endpoint._scope(pin_at)
    scope.reads += 2
    scope.bytes_read += 16
    scope.atomics += 1
    scope.looks += 1
    return same


cdef inline bint glanced_together(
    Endpoint endpoint, u64 stamp_at, u64 slot, u64 word, u64* stamp
) noexcept:
    """`glance`; False: not done."""
    cdef Mapped* mapped = word_at(endpoint, slot)
    if unlikely((slot ^ stamp_at) >> 40 or stamp_at & 7 or mapped == NULL, 0):
        return False
    # one node, whose state was looked at: the other offset is what is left to check
    if unlikely(stamp_at & OFFSET_MASK >= mapped.coherent, 0):
        return False
    cdef u64 found = limpet_load(mapped.base + (stamp_at & OFFSET_MASK))
    cdef bint same = limpet_load(mapped.base + (slot & OFFSET_MASK)) == word
    if unlikely(is_lost(endpoint, slot, mapped), 0):
        return False
    cdef Counters* scope = &endpoint._scopes[2]
    scope.reads += 2
    scope.bytes_read += 16
    scope.looks += 1
    stamp[0] = found if same else 0
    return True


cdef bint stands_on_nodes(
    Endpoint endpoint, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer,
    u64 drops_at, u64 drops
) noexcept:
    """`stands_together`, of words on several nodes."""
    cdef Mapped* first = word_at(endpoint, slot)
    cdef Mapped* second = word_at(endpoint, stamp_at)
    cdef Mapped* third = word_at(endpoint, entry)
    cdef Mapped* control = word_at(endpoint, drops_at)
    if unlikely(first == NULL or second == NULL or third == NULL or control == NULL, 0):
        return False
    if unlikely(limpet_load(first.base + (slot & OFFSET_MASK)) != word, 0):
        return False
    if unlikely(limpet_load(second.base + (stamp_at & OFFSET_MASK)) != stamp, 0):
        return False
    if unlikely(limpet_load(third.base + (entry & OFFSET_MASK)) != pointer, 0):
        return False
    if unlikely(limpet_load(control.base + (drops_at & OFFSET_MASK)) != drops, 0):
        return False
    if unlikely(is_lost(endpoint, slot, first) or is_lost(endpoint, stamp_at, second), 0):
        return False
    if unlikely(is_lost(endpoint, entry, third) or is_lost(endpoint, drops_at, control), 0):
        return False
    cdef Counters* scope = &endpoint._scopes[2]
    scope.reads += 4
    scope.bytes_read += 32
    scope.looks += 1
    return True


cdef inline bint stands_together(
    Endpoint endpoint, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer,
    u64 drops_at, u64 drops
) noexcept:
    """Whether `stands` is true and was done."""
    limpet_used()  # ORDER: what was read without verbs was read before
    if unlikely((slot ^ stamp_at | slot ^ entry) >> 40 or (stamp_at | entry) & 7, 0):
        return stands_on_nodes(
            endpoint, slot, word, stamp_at, stamp, entry, pointer, drops_at, drops
        )
    cdef Mapped* mapped = word_at(endpoint, slot)
    cdef Mapped* control = word_at(endpoint, drops_at)
    if unlikely(mapped == NULL or control == NULL, 0):
        return False
    # one node, whose state was looked at: the other offsets are what is left to check
    if unlikely(max(stamp_at & OFFSET_MASK, entry & OFFSET_MASK) >= mapped.coherent, 0):
        return False
    if unlikely(limpet_load(mapped.base + (slot & OFFSET_MASK)) != word, 0):
        return False
    if unlikely(limpet_load(mapped.base + (stamp_at & OFFSET_MASK)) != stamp, 0):
        return False
    if unlikely(limpet_load(mapped.base + (entry & OFFSET_MASK)) != pointer, 0):
        return False
    if unlikely(limpet_load(control.base + (drops_at & OFFSET_MASK)) != drops, 0):
        return False
    if unlikely(is_lost(endpoint, slot, mapped) or is_lost(endpoint, drops_at, control), 0):
        return False
    cdef Counters* scope = &endpoint._scopes[2]
    scope.reads += 4
    scope.bytes_read += 32
    scope.looks += 1
    return True


cdef inline u64 do_cas(
    Endpoint endpoint, u64 addr, u64 expected, u64 desired, bint look
) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return no_word(endpoint, addr)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    cdef u64 old = limpet_cas(mapped.base + (addr & OFFSET_MASK), expected, desired)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return lost_word(endpoint, addr)
    endpoint._cas(addr, old != expected, look)
    return old


cdef inline u64 do_faa(
    Endpoint endpoint, u64 addr, u64 delta, bint look
) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return no_word(endpoint, addr)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    cdef u64 old = limpet_faa(mapped.base + (addr & OFFSET_MASK), delta)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return lost_word(endpoint, addr)
    endpoint._atomics(addr, look)
    return old


cdef inline u64 do_fetch_or(
    Endpoint endpoint, u64 addr, u64 bits, bint look
) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return no_word(endpoint, addr)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    cdef u64 old = limpet_fetch_or(mapped.base + (addr & OFFSET_MASK), bits)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return lost_word(endpoint, addr)
    endpoint._atomics(addr, look)
    return old


cdef inline u64 do_mcas(
    Endpoint endpoint, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask, bint look
) except? 0xFEEDFACEDEADBEA7:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return no_word(endpoint, addr)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    cdef u64 old = limpet_mcas(
        mapped.base + (addr & OFFSET_MASK), compare, swap, compare_mask, swap_mask
    )
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return lost_word(endpoint, addr)
    endpoint._cas(addr, ((old ^ compare) & compare_mask) != 0, look)
    return old


cdef inline int do_set(Endpoint endpoint, u64 addr, u64 bits) except -1:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, 8)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    limpet_set(mapped.base + (addr & OFFSET_MASK), bits)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._atomics(addr, False)
    return 0


# Verbs of an operation's background message count there, whatever the scope is.

cdef inline int do_send_clear(Endpoint endpoint, u64 addr, u64 bits) except -1:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, 8)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    limpet_clear(mapped.base + (addr & OFFSET_MASK), bits)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._scopes[2 if addr >= CONTROL else 1].cas += 1
    endpoint._message(addr)
    return 0


cdef inline int do_send_store(Endpoint endpoint, u64 addr, u64 value) except -1:
    cdef Mapped* mapped = word_at(endpoint, addr)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, 8)
    if unlikely(endpoint._armed, 0):
        endpoint._step(addr)
    limpet_store(mapped.base + (addr & OFFSET_MASK), value)
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    cdef Counters* scope = &endpoint._scopes[2 if addr >= CONTROL else 1]
    scope.writes += 1
    scope.bytes_written += 8
    endpoint._message(addr)
    return 0


cdef inline int do_wait(Endpoint endpoint) except -1:
    endpoint._here.round_trips += 1
    if unlikely(endpoint.latency_ns and endpoint._here == &endpoint._scopes[0], 0):
        limpet_spin_ns(endpoint.latency_ns)
    return 0


cdef inline int do_persist(Endpoint endpoint) except -1:
    if unlikely(endpoint._noted or endpoint._unfenced, 0):
        return persist_noted(endpoint)
    return 0


cdef inline int do_dirty(Endpoint endpoint, u64 addr, u64 size) except -1:
    return note(endpoint, addr, size) if endpoint.durable else 0


cdef inline bint do_begin(Endpoint endpoint) except -1:
    if unlikely(endpoint._forks != limpet_forks, 0):
        return True
    if unlikely(endpoint._busy or endpoint._awaited, 0) and await_turn(endpoint):
        return False
    endpoint._busy = True
    endpoint._owner = pthread_self()
    endpoint._outside = endpoint._here
    endpoint._operation += 1
    return False


cdef inline int do_end(Endpoint endpoint) except -1:
    endpoint._here = endpoint._outside
    endpoint._busy = False
    return 0


cdef inline bint do_background(Endpoint endpoint, bint on) noexcept:
    cdef bint before = endpoint._here != &endpoint._scopes[0]
    endpoint._here = &endpoint._scopes[1 if on else 0]
    return before
