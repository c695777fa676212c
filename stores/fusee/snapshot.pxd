cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.fusee.tables cimport ReplicatedTables, identity
from limpet.stores.race.index cimport is_frozen, is_vacant
from limpet.stores.race.layout cimport *

cdef u64 PATIENCE

cdef class ReplicatedSlot:
    cdef readonly ReplicatedTables tables
    cdef readonly LoggedObjects logged
    cdef readonly bint sequential
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 head
    cdef readonly u64 backups
    cdef readonly u64 link_address
    cdef readonly u64 current
    cdef u64 posted
    cdef u64[::1] seen

    cpdef int select(self, u64 address, u64 head) except -1
    @cython.locals(place=u64)
    cpdef int go_to(self, u64 link_address) except -1
    cdef u64 backup(self, u64 k) noexcept
    cpdef u64 read(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(ticket=u64)
    cpdef u64 read_word(self, u64 address) except? 0xFEEDFACEDEADBEA7
    cpdef bint write(self, u64 old, u64 new) except -1
    @cython.locals(win=int, ticket=u64)
    cpdef bint conclude(self, bint ours, u64 old, u64 new) except -1
    @cython.locals(k=u64)
    cpdef int recall(self, u64[::1] seen, u64 at) except -1
    cpdef bint cas_backups(self, u64 old, u64 new) except -1
    @cython.locals(k=u64, ticket=u64, was=u64)
    cpdef int propose(self, u64 old, u64 new) except -1
    @cython.locals(ours=bint, k=u64, was=u64)
    cpdef bint proposed(self, u64 old, u64 new) except -1
    @cython.locals(k=u64)
    cpdef int change_backups(self, u64 winner) except -1
    cpdef int _mark_end(self, u64 old, u64 winner) except -1
    @cython.locals(ticket=u64, won=bint)
    cpdef bint _has_won(self, u64 old, u64 new) except -1
    @cython.locals(k=u64)
    cpdef int evaluate_rules(self, bint ours, u64 old, u64 new) except -1
    @cython.locals(k=u64)
    cdef u64 _winner(self) noexcept
    @cython.locals(k=u64, count=u64, other=u64)
    cdef u64 _majority(self) noexcept
    @cython.locals(least=u64, k=u64)
    cdef u64 _least(self) noexcept
    @cython.locals(attempt=u64, ticket=u64, word=u64)
    cpdef int _await(self, u64 old) except -1
    @cython.locals(winner=u64)
    cpdef int help(self, u64 old) except -1
    @cython.locals(proposal=u64, filled=u64, k=u64, was=u64)
    cdef int _fill(self, u64 old) except -1
    @cython.locals(differs=bint, k=u64)
    cdef bint _look_at_backups(self, u64 value) except -1
    @cython.locals(
        attempt=u64, ticket=u64, word=u64, linked=bint, others=int, same=int, k=u64
    )
    cpdef bint resolve(self, u64 reference, u64 link_address, bint hurry) except -1
    @cython.locals(k=u64, backup=u64, there=u64, was=u64)
    cpdef int even_out(self, u64 word) except -1
    @cython.locals(held=int)
    cpdef int _help_out(self, u64 word) except -1
    @cython.locals(ticket=u64, held=int, posted=u64, k=u64)
    cpdef int void(self, u64 vacant) except -1
    @cython.locals(backup=u64, word=u64, current=u64, done=bint, posted=u64)
    cdef int _clear(self, u64 k, u64 ticket) except -1
    cpdef bint is_frozen_at(self, u64 word) except -1
