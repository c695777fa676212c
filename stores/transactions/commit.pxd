cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport is_vacant
from limpet.stores.core.object_layout cimport POINTER
from limpet.stores.core.status cimport *
from limpet.stores.transactions.entry_log cimport log_size
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.log cimport Log
from limpet.stores.transactions.participant cimport Extent, Participant, go_on
from limpet.stores.transactions.parts cimport Part, part_at, part_size
from limpet.stores.transactions.reads cimport KeyRead, ObjectRead, ReadPlace, Reads, Staging
from limpet.stores.transactions.slot_writes cimport SlotWrite, slot_of
from limpet.stores.transactions.staged cimport Staged, StagedNode
from limpet.stores.transactions.try_commit cimport abort, carry_out, give_back
from limpet.stores.transactions.tx_object cimport TXObj

cdef u64 ALIGNED
cdef Py_ssize_t IN_ORDER
cdef Py_ssize_t SHIFTED
cdef Py_ssize_t SLOTS_IN_ORDER

cdef class Commit(Staged):
    cdef readonly LLLocks locks
    cdef public u64 effort
    cdef readonly list writes
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t inserts
    cdef readonly Py_ssize_t written_reads
    cdef readonly list parts
    cdef readonly list objects
    cdef readonly ReadPlace met
    cdef readonly Log log
    cdef bint _rests
    cdef set _taken
    cdef bint _epoch_known
    cdef bint _same_epoch
    cdef object _staged
    cdef Staging _staging
    cdef public list crowded
    cdef public list participants
    cdef Py_ssize_t joined

    cpdef int serve(self, LLLocks locks, reads) except -1
    cpdef int rest(self) except -1
    @cython.locals(index=Py_ssize_t, write=SlotWrite)
    cpdef begin(self, u64 link)
    @cython.locals(index=Py_ssize_t, write=SlotWrite, node=StagedNode)
    cpdef ReadPlace place_of(self, u64 busy)
    cpdef int meet(self, store, bytes key, u64 at) except -1
    cpdef int go_on(self, u64 count) except -1
    @cython.locals(place=Py_ssize_t, write=SlotWrite)
    cpdef SlotWrite write_slot(self, u64 slot, bint inserts, bint was_read)
    @cython.locals(last=Py_ssize_t)
    @cython.final
    cdef int _move_to(self, Py_ssize_t place, SlotWrite write) except -1
    @cython.locals(
        first=Py_ssize_t, end=Py_ssize_t, middle=Py_ssize_t, last=SlotWrite, other=SlotWrite
    )
    @cython.final
    cdef Py_ssize_t _place_in_order(self, u64 slot) except -1
    @cython.locals(write=SlotWrite)
    cpdef set taken(self)
    @cython.locals(reads=Reads)
    cdef bint is_of_read_epoch(self) except -1
    cpdef Staging staging_of(self, store)
    cpdef bint complete(self) except -1
    cpdef carry_out(self, Log log)
    @cython.locals(state=u64, log=Log, outcome=int)
    cpdef int run(self) except -1
    @cython.locals(reads=Reads, write=SlotWrite, node=StagedNode)
    cpdef bint is_single(self) except -1
    @cython.locals(index=Py_ssize_t, node=StagedNode)
    @cython.final
    cdef StagedNode _first_changed(self)
    @cython.locals(reads=Reads, read=KeyRead)
    @cython.final
    cdef bint _has_read_only(self, SlotWrite write) except -1
    @cython.locals(outcome=int, write=SlotWrite, node=StagedNode)
    cpdef int run_alone(self) except -1
    @cython.locals(reads=Reads, ticket=u64)
    @cython.final
    cdef bint _is_linked(self, StagedNode node) except -1
    @cython.locals(reads=Reads, index=Py_ssize_t, node=StagedNode, read=ObjectRead)
    @cython.final
    cdef bint _is_as_read(self) except -1
    @cython.final
    cdef int _lock_and_validate(self, Log log, u64 state) except -1
    @cython.locals(coherent=Allocator, in_journal=bint, reference=u64)
    @cython.final
    cdef Log _open(self, u64 state, u64 size)
    @cython.locals(allocator=Allocator, index=Py_ssize_t, participant=Participant)
    @cython.final
    cdef bint _prepare(self, Log log) except -1
    @cython.locals(index=Py_ssize_t, participant=Participant)
    @cython.final
    cdef int _write_new(self, Log log) except -1
    @cython.locals(index=Py_ssize_t, participant=Participant, locked=bint)
    cpdef bint _lock_all(self, u64 state) except -1
    @cython.locals(
        reads=Reads, read=KeyRead, write=SlotWrite, index=Py_ssize_t, node=StagedNode,
        other=ObjectRead, all_held=bint,
    )
    cpdef bint validate(self) except -1
    @cython.locals(participant=Participant)
    cpdef bint _is_alone(self) except -1
    @cython.locals(participant=Participant, word=u64, link_address=u64, reference=u64)
    cpdef int _end_without(self, u64 state, bint committed) except -1
    @cython.locals(
        size=u64, most=Py_ssize_t,
        parts=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, write=SlotWrite,
        inside=Py_ssize_t, node=u64, log_node=u64, offset=u64, part=Part, index=Py_ssize_t,
    )
    cpdef u64 _join(self) except 0
    @cython.locals(leaf=u64, reference=u64, link_address=u64)
    @cython.final
    cdef int _join_extents(self) except -1
    @cython.final
    cdef int _leave_out(self) except -1
    @cython.final
    cdef int _add(self, Participant participant) except -1
    @cython.locals(
        used=Py_ssize_t, first=Py_ssize_t, index=Py_ssize_t, place=Py_ssize_t, node=StagedNode,
        made=TXObj, other=Participant, objects=list,
    )
    @cython.final
    cdef int _join_objects(self) except -1
    @cython.locals(end=Py_ssize_t, write=SlotWrite)
    @cython.final
    cdef Py_ssize_t _end_of_part(self, Py_ssize_t begin, u64 node) except -1
    @cython.locals(best=u64, each=u64, index=Py_ssize_t, write=SlotWrite, node=StagedNode)
    @cython.final
    cdef u64 _usual_size(self, u64 size) except 0
    cpdef Part new_part(self)
    @cython.locals(first=u64, index=Py_ssize_t, write=SlotWrite, node=StagedNode)
    @cython.final
    cdef u64 _log_node(self) except? 255
    @cython.locals(size=u64, participant=Participant)
    cpdef replenish(self, u64 sparing=*, bint update=*)

cpdef u64 address_of(Participant participant) except? 0
cdef u64 _node_of(u64 address) noexcept
