# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The native fabric: `Endpoint`, one client's view of the memory nodes of a pool, and its verbs.

Address: 64 bits, node << 40 | offset (node 8 bits, offset 40 bits). Node 255 is the control
segment.

Promises of a verb
    Aligned 8-byte words are read and written whole, never more. A read of aligned words, up to 64
    KiB, takes the first one before all but the second, and the second before all others; the others
    come in any order. A write of up to 64 aligned words changes the first one before all others,
    and the last one after them. `load` acquires, `store` releases, every other atomic is a full
    barrier, also a CAS that fails. So the verbs of a thread happen in the order of its calls, but
    for those that read: they may come before a store or a write that was called earlier
    (docs/memory.md). A kill can cut a `write` between any two words.
    A verb on a lost or failed node raises NodeFailed after (for mutations also before) the access.
    So does a verb on a node whose state word is not that of its mapping: the node was replaced
    since (replacement.py), and its old memory is mapped here.

Accounting
    Plain increments, always on, in three scopes. The foreground has an operation's verbs on memory
    nodes. The background has verbs between `background(True)` and `background(False)`, and those
    that are sent (see below). `control` has all verbs on the control segment, and the looks by
    which a get proves itself in place of a pin (`glance`, `stands`). `wait()` ends a phase: one round trip; for `exchanges` see below.
    `futex_wait` and `futex_wake` are no verbs on memory: not counted, and no steps of the crash
    fuse.

Crash fuse
    With `fuse = k > 0` the process sends itself SIGKILL in place of its k-th mutating step; every
    8-byte word of a `write` is a step. Unarmed it costs one predictable branch.

Guard
    With `guard(addr, word)` every step of a mutating verb first checks that the word at `addr` is
    still `word`, and raises ClientError instead of the step if it is not. In a pool of several
    hosts this is the state word of the client's slot. A client that stood still until another one
    declared it dead makes no step after that, except the one in which it was stopped, of 8 bytes at
    most. The check shares the branch of the fuse, so other pools pay nothing for it. A forked child
    has a guard that never holds until it is a client itself: it may have been forked in the midst
    of its parent's operation (a signal handler, a destructor), and must not end that.

Lost memory
    SIGBUS tells of it. A page that is poisoned (BUS_MCEERR_AR) costs what is on it: a verb that
    touches it raises NodeFailed. The rest of its node can be read on. But this endpoint changes
    nothing there any more: code that has met NodeFailed takes what it could not see for gone, and
    must not act on that. `met_loss` is LOSS_MET once a verb has first found such pages, and
    LOSS_CUTS once a change of their node has been refused since, or its effect is unknown; the
    client sets it to 0 when it pins, and resigns if its operation ends in LOSS_CUTS (client.py). Of
    the control segment, of views, and of memory without hardware coherence a poisoned page costs
    the whole, as does a page that is gone in another way.

    SIGBUS below the end of the file behind a node is no loss: its file system is full. The verb
    raises StoreFull, and has changed nothing or, if it is a `write`, a part; the node stays in
    service. (Blocks have pages before any client uses them: file.py. So this happens only where
    that is not possible.) The first `attach` takes SIGBUS over; a fault elsewhere goes on to the
    earlier handler. A handler installed later (faulthandler.enable(), signal.signal) replaces ours:
    install it before the first pool is opened.

Durability
    In a durable pool (`make_durable`) each mutating verb notes the lines that it changes, in a
    fixed array, and `dirty` notes lines that were read. `persist` writes all of them back (clwb, or
    clflushopt) and waits with one fence (sfence). It is called where an order is needed, not after
    each verb: before a link to what was written, and before an operation returns (client.py).
    Lines may reach memory before that, at any time and in any order, as those of any cache do: so
    when the array is full, its lines are written back at once. The note is made before the step,
    and shares the branch of the fuse, so other pools pay nothing for it. Two ranges are never
    noted: the offsets of block table and used bits on memory nodes, and those of words and client
    slots in the control segment; they are made anew after a power cut (mending.py).

Reading in place
    An `Image` has the result of a read: a copy, or, if the memory does not change while the client
    looks at it, the memory itself. After each use it checks again whether the node is lost.

Hints
    `prefetch` is no verb: not counted, no step, and it never raises.
    `hints`: whether callers are to prefetch for the operations that follow. They are not where
    verbs are overridden, nor where memory is not hardware-coherent.

Threads
    `begin`/`end` bracket an operation. One thread at a time is inside: the GIL is held from verb to
    verb except in `pause` and `futex_wait`, so a plain flag is enough here. A verb of 64 KiB or
    more lets other threads run while it copies; it is inside all the while. `begin` also notices a
    fork. `frame`: the Python frame that entered, if it was one; an operation whose frame is no
    longer on its thread's stack was cut off by a signal handler, and the next one takes its place
    (inside.py), after `abandoned`, which the client sets, has ended it.

`portable.py` is the same class without C; tests let both work on the same words. The included files
are one module with this one, so that no part of a verb is a call into another module.

Phases, and posted verbs
    A phase is what a NIC could do without waiting. A protocol written in phases *posts* its verbs
    (`post_load`, `post_cas`, `post_read`...), calls `wait`, and looks at their results only then. A
    posted verb that has a result returns a ticket, and `result(ticket)` after `wait` is the result.
    A buffer that is read into, or an `Image`, is looked at after `wait`.

    Order. The posted verbs of a phase happen in the order in which they were posted on each node,
    and in any order across nodes. All have happened when `wait` returns. A verb that is not posted
    happens after those that were posted on its own node. Words of the control segment are not
    posted, but by the `load_all` of a remote endpoint. The verbs of `post_cas_if` and
    `post_gather_if` depend on an earlier one of their phase, on the same node: they happen only if
    that one had a certain result. (The server of a node could decide that, and no NIC on another
    one.) If a node is lost, a posted verb raises NodeFailed here or in its `wait`; the other verbs
    of the phase may have happened. Before any verb raises NodeFailed, all posted ones are done or
    given up.

    On mapped memory a posted verb is done at once, a ticket is the result, and posting costs
    nothing. So only the simulator (simulated.py) shows whether a protocol keeps to this: it does
    posted verbs late, returns tickets that mean nothing, fills buffers with words that mean
    nothing, and raises PhaseError for a look before `wait`.

    Posted verbs have names of their own. A verb is not posted by what it is: a write has no
    result, but a protocol may rely on its order before a verb on another node. So a protocol that
    is not written in phases keeps the order in which it calls its verbs.

    `exchanges`: how often a fabric would wait for an answer. An exchange is a set of verbs that are
    sent before any of their results is looked at, to however many nodes: so many messages, and one
    time to wait. It is 1 for each `wait`, and 1 for each verb with a result that is not posted,
    since its caller looks at once (`pin` and `read_tagged` are one verb here). In a protocol that is
    written in phases, exchanges are the round trips; in another one they are at most this many, as
    its `wait` may have nothing left to wait for. `fetch` is a `read` that is a phase. A write that
    is not posted counts as none. Each scope has its own; those of the background and of `control`
    have, besides, the messages that are sent.

The background of an operation
    What an operation leaves to be done, and does not need itself, it *sends* (`send_clear`,
    `send_store`...): the used bit of an object that it has unlinked, its entries in the client
    journal, its pin. A fabric gathers these verbs. When the operation ends (`end`), they are one
    message to each node, which is never waited for: the operation returns before they are done. On
    mapped memory they are done at once, and cost what their verbs cost.

    Order. On one node they are done in the order in which they were sent, after all earlier verbs
    of this client and before all later ones. Those on the control segment are done after all that
    were posted or sent before them, on whatever node: an object is freed before the client journal
    loses it, and the journal is empty before the pin goes. So a protocol need not wait for verbs
    that nothing but its pin or its journal has to outlast, such as the unlocking after a conflict. (On a fabric: when the other nodes' completions
    are there.) So a client that dies before its messages are done leaves what a client leaves that
    is killed before the end of its operation. A node that is lost, or that has evicted the client,
    refuses them, and no client hears of it.

    What may be sent: that which no later verb of any client relies on having happened, except
    under the pin, which goes last. Never a verb that an operation takes effect by, nor a used bit
    that is set: another client could allocate the object meanwhile. (`post_set` is for that: it
    goes with the write of the object.)

    Control words. Mapped memory has them for nothing. The messages that a fabric would need for
    them are in the scope `control`. A remote client touches none in a warm operation, but for its
    journal. Remote clients: shm/net/, and the simulator's; why this holds: shm/clients/lasting.py:
    - The pin lasts over operations. It is given up without being asked when the client is idle, and
      once in a quarter of a lease, when the client pins anew. So its age bounds how long memory
      waits for a remote client. A get has that pin, so it needs no `glance`.
    - EPOCH, HOLDS, DROPS, VIEW and the pressure are copies, which are good as long as the pin. A
      client that changes one of them and then waits for pins needs no other wait. One that relies
      on its change at once waits for the remote clients until each has read it again.
    - The client journal still lies in the control segment. Beside its objects, in the order of
      their nodes' verbs, it would cost no message of its own: lasting.py says what that needs,
      and how many messages there are now.

Verbs that can be overridden, and verbs that cannot
    A method of `Endpoint` checks whether a class in Python overrides it, which takes about as long
    as the verb. So an endpoint that is not of such a class has the methods of `Direct`, which are
    the same lines, in its table of C methods from the beginning.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.string cimport memcmp, memcpy, memmove, memset
cimport cython

from limpet.shm.endpoint.slots cimport DYING, STATE_BELOW, STATE_SHIFT
from limpet.shm.endpoint.states cimport LOSS_CUTS, LOSS_MET

import os

from limpet.shm.errors import (
    AddressError,
    ClientError,
    CoherenceError,
    NodeFailed,
    PhaseError,
    ReentrantUse,
    StoreFull,
)
from limpet.shm.endpoint.inside import is_over
from limpet.shm.endpoint.states import (
    DISOWNED,
    FORKED,
    FORMERLY,
    PAGES_LOST,
    why_failed,
    why_gone,
)


include "native.pxi"

cdef u64[256] NO_STATES
cdef unsigned char NOT_LOST = 0
cdef unsigned char CLOSED = 1
cdef u64 NO_ERA = 0
cdef u64 TORN = 0xFFFF_FFFF_FFFF_FFFF
"""In place of the state of a node of which pages are lost: no state word, so every verb looks."""
_SCOPES = ("foreground", "background", "control")

cdef int _has_crc = limpet_has_crc()

cdef enum:
    DIRTY_MAX = 32
    PATIENCE = 4  # looks in vain; between them another thread may run for 5 ms
    POLITE = 64
    APART = 0x1_0000_0000  # more than 32 bits, which a row has
    SCOPE_WORDS = 33  # of the counters: slots.py
    POOL_CLOCK = 4424  # in the control segment: layout.py
    POOL_CLOCK_MS = 0x3FF_FFFF_FFFF  # pool_clock.py

cdef void* DIRECT = NULL
"""The table of C methods of `Direct`."""


cdef inline void** table_of(Endpoint endpoint) noexcept:
    """The place of an endpoint's table of C methods: Cython puts it behind the object's head."""
    return <void**>(<char*><void*>endpoint + sizeof(PyObject))


cdef inline u64 unlooked(Endpoint endpoint, u64 addr, u64 looks, u64 found) noexcept:
    """The result of a verb on `addr` that is no look: as many are counted as before it."""
    endpoint._scope(addr).looks = looks
    return found


limpet_watch_forks()


cdef long long _boot_shift_us = 0


def shift_boot_clock(long long shift_us):
    """The clock since boot is so many us ahead in this process's time namespace (pool_clock.py)."""
    global _boot_shift_us
    _boot_shift_us = shift_us


def sleep_at(u64[::1] places, u64[::1] values, int count, u64 timeout_us) -> int:
    """Sleep while the low halves of the first `count` words are those of `values`, at most so long.

    `places`: as of `place_of`; at most SLEEP_WORDS. The number of a word that was woken; -1: the
    time is over, or a signal came; -2: a word differs; -3: a place is not mapped any more; -4: the
    kernel cannot do it.
    """
    cdef int found
    if not 0 < count <= SLEEP_WORDS or count > places.shape[0] or count > values.shape[0]:
        raise ValueError(f"sleep_at takes 1 to {SLEEP_WORDS} words, not {count}")
    with nogil:
        found = limpet_futex_waitv(&places[0], &values[0], count, timeout_us)
    PyErr_CheckSignals()
    return found


def wake_at(u64 place) -> int:
    """Wake the threads of this process that sleep at the word that is mapped at `place`."""
    return limpet_futex_wake(<const void*>place, 1)


SLEEP_WORDS = 128


def flush_features() -> frozenset:
    """Cache-line instructions that CPUID reports: "clflushopt", "clwb"."""
    cdef int features = limpet_flush_features()
    return frozenset(name for bit, name in ((1, "clflushopt"), (2, "clwb")) if features & bit)


include "words.pxi"


include "checks.pxi"
include "watched.pxi"
include "renewal.pxi"
include "rare.pxi"
include "dirty.pxi"
include "hot_verbs.pxi"
include "slow_verbs.pxi"


cdef class Endpoint:
    """One client's view of the pool's memory nodes. The module lists the promises of a verb."""

    def __cinit__(self, *args, **options):
        do_init(self)

    def __dealloc__(self):
        # The collector may have unmapped the memory that was counted in.
        self.figures = self._own
        self._forget()

    # ---- setting up -------------------------------------------------------------------------

    def attach(
        self, int node, mapping, Py_ssize_t size, coherent_bytes=None, u64 state=0, int fd=-1
    ):
        """Map `node` to the writable buffer `mapping`, of which `size` bytes are used.

        `coherent_bytes`: None when the whole node is hardware-coherent; else how many of its first
        bytes are. Raises CoherenceError when the CPU cannot flush cache lines. The mapping cannot
        be closed before `detach` or `release`. `state`: as `expect` sets it. `fd`: the file that is
        mapped from its first byte on, if its memory can run short; it stays open until then.
        """
        do_attach(self, node, mapping, size, coherent_bytes, state, fd)

    def watch_states(self, u64 addr):
        """Take the 256 words at `addr` for the nodes' states; a node may be used as long as its
        word is the one that it was attached with."""
        self._at(addr, 2048)
        self._states = <u64*>self._word(addr)

    def give_up(self, u64 slot, u64 word):
        """Have the client of this slot be DYING, if it has still this state word: LIVE; False: that
        is under way. All servers look at the word, so one CAS does it; see RemoteEndpoint."""
        self.cas(slot, word, <u64>DYING << STATE_SHIFT | word & STATE_BELOW)
        return True

    def see_states(self):
        """Nothing: each verb looks at the state of its node; see RemoteEndpoint."""

    def expect(self, int node, u64 state):
        """Use an attached node's mapping as long as its state word is `state`."""
        if not 0 <= node <= 255 or self._map[node].base == NULL:
            raise AddressError(f"node {node} is not attached")
        if self._map[node].state == TORN:
            limpet_ranges[self._range[node]].state = state
        else:
            self._map[node].state = state

    def expected(self, int node) -> int:
        """The state word under which `node` may be used; 0 when it is not attached."""
        return expected_state(self, node) if 0 <= node <= 255 else 0

    cpdef object lend(self, u64 addr, u64 size, bint writable):
        """`size` bytes at `addr` for use without verbs: `Lent`. NodeFailed, AddressError: as of a
        verb."""
        if not size:  # may be at the very end
            return Lent(bytearray(), 0, 0, writable)
        self._at(addr, size)
        return Lent(self._keep[addr >> 40].obj, addr & OFFSET_MASK, size, writable)

    def release(self, int node):
        """Forget the mapping of one node, if it is attached."""
        if 0 <= node <= 255:
            self._clear(node)
            view = self._keep.pop(node, None)
            if view is not None:
                view.release()

    def detach(self):
        """Forget every mapping; verbs raise AddressError from now on. May be called twice."""
        self._forget()
        for view in self._keep.values():
            view.release()
        self._keep = {}

    @property
    def fuse(self) -> int:
        """The number of steps after which the process kills itself; 0: never."""
        return self._fuse

    @fuse.setter
    def fuse(self, long long steps):
        self._fuse = steps
        self._arm()

    cpdef int guard(self, u64 addr, u64 word) except -1:
        """From now on a mutating verb raises ClientError unless the word at `addr` is `word`;
        `addr` 0: no more. The word must stay mapped until then."""
        self._guard = <u64*>self._word(addr) if addr else NULL
        self._guarded = word
        self._arm()
        return 0

    cdef void _arm(self) noexcept:
        self._armed = self._fuse > 0 or self._guard != NULL or self.durable

    cpdef int make_durable(
        self, u64 node_from, u64 node_end, u64 control_from, u64 control_end
    ) except -1:
        """From now on note the lines that mutating verbs change, for `persist`.

        But not those at these offsets of memory nodes, and of the control segment: what is there is
        made anew after a power cut. Raises CoherenceError: the CPU cannot write lines back.
        """
        return do_make_durable(self, node_from, node_end, control_from, control_end)

    @property
    def noted(self) -> int:
        """How many ranges of lines `persist` has to write back."""
        return self._noted + self._unfenced

    cdef void _forget(self) noexcept:
        do_forget(self)

    cdef void _clear(self, int node) noexcept:
        do_clear(self, node)

    # ---- checks -----------------------------------------------------------------------------

    cdef char* _at(self, u64 addr, u64 size) except NULL:
        cdef Mapped* mapped = bytes_at(self, addr, size)
        if mapped == NULL:
            self._refuse(addr, size)
        return mapped.base + (addr & OFFSET_MASK)

    cdef char* _word(self, u64 addr) except NULL:
        cdef Mapped* mapped = word_at(self, addr)
        if mapped == NULL:
            self._refuse(addr, 8)
        return mapped.base + (addr & OFFSET_MASK)

    cdef int _refuse(self, u64 addr, u64 size) except -1:
        """Raise the error for an access to `size` bytes (8: perhaps a word) at `addr`."""
        return do_refuse(self, addr, size)

    cdef int _mourn(self, u64 node) except -1:
        return do_mourn(self, node)

    cdef int _renew_edges(self, u64 addr, u64 size) except -1:
        """Before a write without coherence: fetch the parts of its lines that other clients wrote.

        Otherwise, writing back our line would restore our old copy of its other part.
        """
        return do_renew_edges(self, addr, size)

    cpdef bint lost(self, int node) except -1:
        """Whether this process has met SIGBUS on `node`, other than for a full file system."""
        if not 0 <= node <= 255 or self._map[node].lost == NULL:
            return False
        return self._map[node].lost[0] in (LIMPET_LOST, LIMPET_TORN)

    def lost_pages(self, int node) -> list:
        """Offset and size of the pages that this process has met as poisoned on a node that is not
        lost as a whole."""
        if not 0 <= node <= 255 or self._map[node].lost == NULL:
            return []
        cdef Range* found = &limpet_ranges[self._range[node]]
        if found.lost != LIMPET_TORN:
            return []
        return [
            (found.pages[n].low - found.base, found.pages[n].high - found.pages[n].low)
            for n in range(limpet_torn(self._range[node]))
        ]

    cpdef int our_loss(self) noexcept:
        """The first node that is in service and of which this process has lost pages; -1: none."""
        cdef int node
        for node in range(255):
            if self._map[node].state == TORN and self._states[node] == expected_state(self, node):
                return node
        return -1

    cdef inline Counters* _scope(self, u64 addr) noexcept:
        # a verb on the control segment is no verb on a memory node: never in the foreground
        return &self._scopes[2] if addr >= CONTROL else self._here

    cdef inline void _message(self, u64 addr) noexcept:
        """Count the message of this operation to the node of `addr`, if it is not counted yet."""
        cdef u64 node = addr >> 40 & 255
        if self._sent[node] != self._operation:
            self._sent[node] = self._operation
            self._scopes[2 if addr >= CONTROL else 1].looks += 1

    cdef inline void _reads(self, u64 addr, u64 size, bint look) noexcept:
        cdef Counters* scope = self._scope(addr)
        scope.reads += 1
        scope.bytes_read += size
        scope.looks += look

    cdef inline void _writes(self, u64 addr, u64 size) noexcept:
        cdef Counters* scope = self._scope(addr)
        scope.writes += 1
        scope.bytes_written += size

    cdef inline void _atomics(self, u64 addr, bint look) noexcept:
        cdef Counters* scope = self._scope(addr)
        scope.atomics += 1
        scope.looks += look

    cdef inline void _cas(self, u64 addr, bint lost, bint look) noexcept:
        cdef Counters* scope = self._scope(addr)
        scope.cas += 1
        scope.cas_lost += lost
        scope.looks += look

    cdef inline int _burn(self) except -1:
        # ORDER: checked right before the step that it guards, and not remembered.
        if self._guard != NULL and (<volatile u64*>self._guard)[0] != self._guarded:
            raise ClientError(DISOWNED if self._forks == limpet_forks else FORKED)
        if self._fuse > 0:
            self._fuse -= 1
            if self._fuse == 0:
                limpet_die()
        return 0

    cdef inline int _step(self, u64 addr) except -1:
        """Before a step that changes the word at `addr`."""
        if self.durable:
            note_step(self, addr, 8)
        return self._burn()

    # ---- verbs ------------------------------------------------------------------------------

    cpdef bint failed(self, u64 addr) noexcept:
        """Not a verb: whether a verb on this address would find its node marked as failed."""
        return do_failed(self, addr)

    cpdef int read_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        """Fill `count` of `words`, from `start` on: `read_into` without the buffer protocol.

        Two aligned words are read in their order, in one verb: the second one no earlier than the
        first. They may be of two moments. So a lock and the pointer beside it are two words, the
        lock first: the pointer that was read is no older than the lock. More words are read in any
        order."""
        return do_read_words(self, addr, &words[0], words.shape[0], count, start, True)

    cpdef u64 read_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        """Fill 32 of `words`, from `start` on: 16 from the address `first`, 16 from `second`; two
        `read_words`. Which of these 32 have `tag` in bits 56-63: as bits."""
        cdef u64 looks = self._scope(first).looks
        unlooked(self, first, looks, self.read_words(first, words, 16, start))
        self.read_words(second, words, 16, start + 16)
        return words_tagged(words, start, 32, tag)

    cpdef void prefetch(self, u64 addr, u64 size, bint writes=False) noexcept:
        """A hint, not a verb: `size` bytes from `addr` may be read soon, or, if `writes`, written.
        Any address will do."""
        do_prefetch(self, addr, size, writes)

    cpdef int write_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        """One write from a gather list: `count` words, then `first`, then `second`.

        `second` begins at the next 8-byte boundary after `first`; the gap is written as zeros.
        """
        return do_write_gather(self, addr, &words[0], words.shape[0], count, first, second)

    cpdef int write_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        """Write `count` of `words`, from `start` on: `write` without the buffer protocol."""
        return do_write_words(self, addr, &words[0], words.shape[0], count, start)

    cpdef u64 load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        """The word at `addr`."""
        return do_load(self, addr, True)

    @property
    def gathers(self):
        """Whether `load_all` is one exchange: of a remote endpoint. Else it is as many loads."""
        return False

    def load_all(self, addrs):
        """The words at these addresses, a list, read in this order; of a remote endpoint in one
        exchange, and in order on each node. Work that looks at many words calls it between
        phases."""
        return [self.load(addr) for addr in addrs]

    def read_between(self, places, size):
        """The words at `places`, `size` bytes from the first of them on, and the words again: read
        in this order; of a remote endpoint in one exchange, as `load_all`."""
        before = self.load_all(places)
        data = self.read(places[0], size)
        return before, data, self.load_all(places)

    cpdef int store(self, u64 addr, u64 value) except -1:
        """Set the word at `addr`."""
        return do_store(self, addr, value)

    cpdef int store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        """Two `store`, in this order."""
        self.store(addr, value)
        return self.store(then_addr, then_value)

    cpdef u64 swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        """Set the word at `addr`; its old value. A full barrier."""
        return do_swap(self, addr, value, True)

    cpdef bint pin(
        self, u64 pin_at, u64 pin, u64 epoch_at, u64 epoch, u64 drops_at, u64 drops
    ) except -1:
        """If the word at `epoch_at` is `epoch`: set the word at `pin_at` to `pin`, by `swap`; then
        look whether the word at `drops_at` is `drops`. Whether both were so."""
        cdef Counters* scope = self._scope(pin_at)
        cdef u64 looks = scope.looks
        cdef bint same = pinned_apart(self, pin_at, pin, epoch_at, epoch, drops_at, drops)
        scope.looks = looks + 1
        return same

    cpdef u64 glance(self, u64 stamp_at, u64 slot, u64 word) except? 0xFEEDFACEDEADBEA7:
        """Counted with the control words: the word at `stamp_at`, if the one at `slot`, read after it, is
        `word`; else 0."""
        return glanced_apart(self, stamp_at, slot, word)

    cpdef bint stands(
        self, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 entry, u64 pointer, u64 drops_at,
        u64 drops
    ) except -1:
        """Counted with the control words: whether the words at these four addresses, read in this order, are
        those."""
        return stands_apart(self, slot, word, stamp_at, stamp, entry, pointer, drops_at, drops)

    cpdef u64 cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        """Set the word at `addr` to `desired` if it is `expected`; its old value."""
        return do_cas(self, addr, expected, desired, True)

    cpdef u64 faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        """Add `delta`, modulo 2**64, to the word at `addr`; its old value."""
        return do_faa(self, addr, delta, True)

    cpdef u64 fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        """Set `bits` in the word at `addr`; its old value."""
        return do_fetch_or(self, addr, bits, True)

    cpdef u64 mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        """Masked CAS as RDMA NICs define it; the old value of the word.

        If the word equals `compare` in the bits of `compare_mask`, its bits in `swap_mask` are
        replaced by those of `swap`.
        """
        return do_mcas(self, addr, compare, swap, compare_mask, swap_mask, True)

    # ---- posted verbs -------------------------------------------------------------------------
    # Here, where verbs are overridden, each is its verb, which is not counted as a look.

    cpdef int post_read(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        """Post `read_words`."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.read_words(addr, words, count, start))

    cpdef u64 post_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        """Post `read_tagged`; the ticket of its result."""
        cdef u64 looks = self._scope(first).looks
        return unlooked(self, first, looks, self.read_tagged(first, second, words, start, tag))

    cpdef int post_image(self, Image image, u64 addr, Py_ssize_t count) except -1:
        """Post a read of `count` words into an image. `Image.post` calls it."""
        return self.post_read(addr, image.words, count)

    cpdef int post_write(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        """Post `write_words`. The words may be used for something else at once."""
        return self.write_words(addr, words, count, start)

    cpdef int post_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        """Post `write_gather`. The words may be used for something else at once."""
        return self.write_gather(addr, words, count, first, second)

    cpdef u64 post_load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        """Post `load`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.load(addr))

    cpdef u64 post_swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        """Post `swap`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.swap(addr, value))

    cpdef u64 post_cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        """Post `cas`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.cas(addr, expected, desired))

    cpdef u64 post_cas_if(
        self, u64 first, u64 wanted, u64 addr, u64 expected, u64 desired
    ) except? 0xFEEDFACEDEADBEA7:
        """Post `cas`, to be done only if the verb with the ticket `first`, posted in this phase on
        the same node, has the result `wanted`; the ticket of its result.

        The result is another word than `expected` if it was not done.
        """
        return self.post_cas(addr, expected, desired) if first == wanted else ~expected

    def post_gather_if(
        self, u64 first, u64 wanted, u64 addr, u64[::1] words, Py_ssize_t count, bytes one,
        bytes two
    ):
        """Post `write_gather`, to be done only if the verb with the ticket `first`, posted in this
        phase on the same node, has the result `wanted`."""
        return self.post_gather(addr, words, count, one, two) if first == wanted else 0

    cpdef u64 post_faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        """Post `faa`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.faa(addr, delta))

    cpdef u64 post_fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        """Post `fetch_or`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.fetch_or(addr, bits))

    cpdef u64 post_mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        """Post `mcas`; the ticket of its result."""
        cdef u64 looks = self._scope(addr).looks
        return unlooked(self, addr, looks, self.mcas(addr, compare, swap, compare_mask, swap_mask))

    cpdef int post_set(self, u64 addr, u64 bits) except -1:
        """Post `fetch_or`, without a result. If the node is marked as failed, it raises here; if it
        is lost after that, `wait` does not tell."""
        cdef u64 looks = self._scope(addr).looks
        self.fetch_or(addr, bits)
        unlooked(self, addr, looks, 0)
        return 0

    # ---- the background message of an operation -----------------------------------------------

    cpdef int send_clear(self, u64 addr, u64 bits) except -1:
        """Send the clearing of these bits of a word."""
        cdef Counters* here = self._here
        self._here = &self._scopes[1]
        cdef u64 looks = self._scope(addr).looks
        try:
            self.mcas(addr, 0, 0, 0, bits)
            self._scope(addr).looks = looks
        finally:
            self._here = here
        self._message(addr)
        return 0

    cpdef int send_store(self, u64 addr, u64 value) except -1:
        """Send `store`."""
        cdef Counters* here = self._here
        self._here = &self._scopes[1]
        try:
            self.store(addr, value)
        finally:
            self._here = here
        self._message(addr)
        return 0

    cpdef int send_store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        """Send two `store`, in this order."""
        self.send_store(addr, value)
        return self.send_store(then_addr, then_value)

    cpdef int send_words(self, u64 addr, u64[::1] words, Py_ssize_t count) except -1:
        """Send `write_words`. The words may be used for something else at once."""
        return send_apart(self, addr, words, count)

    cpdef u64 result(self, u64 ticket) except? 0xFEEDFACEDEADBEA7:
        """The result of a posted verb, after the `wait` of its phase."""
        return ticket

    cpdef bytes fetch(self, u64 addr, Py_ssize_t size):
        """A phase of its own: `read`, and `wait`."""
        cdef u64 looks = self._scope(addr).looks
        cdef bytes found = self.read(addr, size)
        unlooked(self, addr, looks, 0)
        self.wait()
        return found

    cpdef int wait(self) except -1:
        """End a phase: the verbs since the last `wait` were one round trip, FIFO per node."""
        return do_wait(self)

    cpdef bint begin(self) except -1:
        """Enter an operation. True: this is a forked child that needs an identity of its own.

        Waits while another thread is inside, and for one that has waited long; raises ReentrantUse
        when this thread is inside.
        """
        return do_begin(self)

    cpdef int end(self) except -1:
        """Leave the operation that `begin` entered, and the accounting scope that it has set."""
        return do_end(self)

    cpdef bint background(self, bint on) noexcept:
        """Count the verbs from here on as background work, or not; the earlier setting."""
        return do_background(self, on)

    cpdef bytes read(self, u64 addr, Py_ssize_t size):
        """`size` bytes from `addr`; aligned words of it are whole, the rest is not."""
        return do_read(self, addr, size)

    cpdef int read_into(self, u64 addr, buffer) except -1:
        """Fill the writable `buffer` from `addr`."""
        return do_read_into(self, addr, buffer)

    def image(self, Py_ssize_t size, bint in_place=False) -> Image:
        """A place for `size` bytes, a multiple of 8, that are read and looked at (see `Image`)."""
        return Image(self, size, in_place)

    cpdef void prefetch_target(self, u64 addr, u64 start, u64 size) noexcept:
        """A hint, not a verb: `prefetch` of `size` bytes, from byte `start` on, of the object to
        which the reference at `addr` leads. Any address will do."""
        cdef u64 node = addr >> 40
        cdef u64 offset = addr & OFFSET_MASK
        if node < 256 and not addr & 7 and offset < self._map[node].coherent:
            self.prefetch((limpet_load(self._map[node].base + offset) & ADDRESS_MASK) + start, size)

    cdef inline int _copy(self, u64 addr, char* target, const char* source, u64 size) except -1:
        if unlikely(self._armed, 0):
            return self._copy_armed(addr, target, source, size)
        limpet_copy_in(target, source, size)
        return 0

    cdef int _copy_armed(self, u64 addr, char* target, const char* source, u64 size) except -1:
        cdef u64 done = 0
        cdef u64 step
        if self.durable:
            note_step(self, addr, size)
        if self._fuse > 0 or self._guard != NULL:
            while done < size:
                self._burn()
                step = 8 - (<u64>target + done & 7)
                step = min(step, size - done)
                limpet_copy_in(target + done, source + done, step)
                done += step
        else:
            limpet_copy_in(target, source, size)
        return 0

    cpdef int write(self, u64 addr, data) except -1:
        """Write the bytes-like `data` to `addr`; a kill can cut it between any two words."""
        return do_write(self, addr, data)

    cpdef int write_back(self, u64 addr, u64 size) except -1:
        """Push the cache lines of these bytes to memory. Every write that needs it calls it."""
        if self._incoherent:
            limpet_write_back(self._at(addr, size), size, self._features)
            self._here.lines_flushed += ((addr & 63) + size + 63) >> 6
            self._here.fences += 1
        return 0

    cpdef int invalidate(self, u64 addr, u64 size) except -1:
        """Drop the cache lines of these bytes, written back. Every verb that needs it calls it."""
        if self._incoherent:
            limpet_invalidate(self._at(addr, size), size)
            self._here.lines_flushed += ((addr & 63) + size + 63) >> 6
            self._here.fences += 1
        return 0

    cpdef int dirty(self, u64 addr, u64 size) except -1:
        """Note lines that this client has read, and that their writer may not have written back.

        Of a durable pool: what this client returns, or builds on them, needs them after a cut.
        """
        return do_dirty(self, addr, size)

    cpdef int flush(self, u64 addr, u64 size) except -1:
        """Begin to write the lines of these bytes back. `persist` calls it, and waits for it."""
        return do_flush(self, addr, size)

    cpdef int persist(self) except -1:
        """Write back all lines that were noted; they survive a power cut when this returns."""
        return do_persist(self)

    cpdef int pause(self, u64 attempt) except -1:
        """Back off before try `attempt` (0, 1, 2...): pause, then yield, then sleep up to 1 ms.

        Lets other threads run, and lets a signal handler raise, from the first yield on.
        """
        return do_pause(self, attempt)

    cpdef int futex_wait(self, u64 addr, u32 expected, u64 timeout_us) except -1:
        """Sleep while the low half of the word at `addr` is `expected`, at most `timeout_us`.

        1: it differs, a client called `futex_wake`, or a signal came, whose handler may raise; 0:
        the time is over. To be called outside of an operation, since other threads run meanwhile.
        """
        return do_futex_wait(self, addr, expected, timeout_us)

    cpdef int futex_wake(self, u64 addr, int count) except -1:
        """Wake up to `count` of the threads that sleep on the word at `addr`; how many there were.

        Threads on other hosts or in pure builds are not woken: they look again after their timeout.
        """
        return do_futex_wake(self, addr, count)

    def place_of(self, u64 addr) -> int:
        """Where the word at `addr` is mapped in this process, for `sleep_at`."""
        return <u64>self._word(addr)

    cpdef u64 microseconds(self) except? 0:
        """The time of the pool's clock (pool_clock.py), in us since 1970."""
        cdef Mapped* control = &self._map[255]
        cdef u64 word = 0
        cdef timespec since
        if control.base != NULL and control.coherent > POOL_CLOCK:
            word = limpet_load(control.base + POOL_CLOCK)
        if not word:
            return limpet_microseconds()
        clock_gettime(CLOCK_BOOTTIME, &since)
        return (
            (word & POOL_CLOCK_MS) * 1000 + <u64>since.tv_sec * 1000000
            + <u64>since.tv_nsec // 1000 - <u64>_boot_shift_us
        )

    # ---- one operation at a time --------------------------------------------------------------

    cdef bint _take_over(self) except -1:
        """Take the place of an operation that was cut off (inside.py); False: none was cut off."""
        return do_take_over(self)

    def begin_last(self) -> bool:
        """Enter an operation without waiting, to end the handle; False: another thread is inside.

        An operation of this thread that a signal handler has cut off is over.
        """
        if self._busy and self._owner != pthread_self():
            return False
        if not self._busy:
            self._outside = self._here
        self._busy = True
        self._owner = pthread_self()
        return True

    def begin_idle(self) -> bool:
        """Enter an operation, if no thread is inside; whether none was."""
        return not self._busy and self.begin_last()

    def adopted(self):
        """The forked child has an identity now: `begin` works again."""
        self._forks = limpet_forks
        self._here = self._outside = &self._scopes[0]
        self._busy = self._awaited = False
        self.frame = None

    # ---- accounting ---------------------------------------------------------------------------

    def counters(self, scope="foreground") -> dict:
        """Counts since the endpoint was made: verbs, round trips, exchanges, bytes."""
        cdef int number = _SCOPES.index(scope)
        cdef u64 difference[11]
        cdef int i
        for i in range(11):
            difference[i] = (<u64*>&self._scopes[number])[i] - (<u64*>&self._before[number])[i]
        cdef Counters c = (<Counters*>difference)[0]
        cdef dict found = c
        found["exchanges"] = found["round_trips"] + found.pop("looks")
        return found

    def reset_counters(self):
        """Set every count to 0."""
        memcpy(self._before, self._scopes, sizeof(self._before))

    def count_at(self, u64 addr):
        """From now on count in the words at `addr`, as slots.py has them, and on from what is
        there; 0: in private memory. What `counters` says goes on. They are changed without verbs.
        """
        do_count_at(self, <u64*>self._at(addr, sizeof(self._own)) if addr else self._own)


include "direct.pxi"


DIRECT = table_of(Direct())[0]


cpdef int write_summed(
    Endpoint endpoint, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second, u64 seed
) except -1:
    """`write_gather`; the last word of `words` becomes the `checksum` of `second` by this seed. A
    long value is read once for both."""
    if first is None or second is None or not 0 < count <= words.shape[0] or addr & 7:
        return no_gather(addr, count, first, second)
    cdef u64 n2 = PyBytes_GET_SIZE(second)
    if n2 < LIMPET_LONG or not endpoint._plain or endpoint._armed or endpoint._incoherent:
        words[count - 1] = checksum_of(<const unsigned char*>PyBytes_AS_STRING(second), n2, seed)
        return endpoint.write_gather(addr, words, count, first, second)
    cdef u64 head = <u64>count * 8
    cdef u64 before = head + (<u64>PyBytes_GET_SIZE(first) + 7 & ~7ULL)
    cdef Mapped* mapped = bytes_at(endpoint, addr, before + n2)
    if unlikely(mapped == NULL, 0):
        return endpoint._refuse(addr, before + n2)
    words[count - 1] = copy_summed(endpoint, addr + before, second, seed)
    limpet_copy_in(mapped.base + (addr & OFFSET_MASK), &words[0], head)
    limpet_copy_padded(
        mapped.base + (addr & OFFSET_MASK) + head, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first)
    )
    if unlikely(is_lost(endpoint, addr, mapped), 0):
        return endpoint._mourn(addr >> 40)
    endpoint._writes(addr, before + n2)
    return 0


cpdef int post_summed(
    Endpoint endpoint, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second, u64 seed
) except -1:
    """Post `write_summed`."""
    if endpoint._plain:
        return write_summed(endpoint, addr, words, count, first, second, seed)
    if first is None or second is None or not 0 < count <= words.shape[0] or addr & 7:
        return no_gather(addr, count, first, second)
    words[count - 1] = checksum(second, seed)
    return endpoint.post_gather(addr, words, count, first, second)


include "image.pxi"
