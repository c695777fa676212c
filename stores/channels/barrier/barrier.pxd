cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.barrier.layout cimport *
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.phases cimport cas_alone
from limpet.stores.channels.waiting cimport Wait, Waiting

cdef int WAITS
cdef int PASSED
cdef int AGAIN

cdef class Party:
    cdef public u64 place
    cdef public u64 ident
    cdef public u64 token

cdef class Barrier(Channel):
    cdef readonly int of
    cdef readonly object action
    cdef readonly object timeout
    cdef readonly bint goes_on
    cdef readonly object sst
    cdef readonly Waiting waiting
    cdef readonly u64 came
    cdef readonly u64 came_in
    cdef readonly u64 threads
    cdef readonly u64 first

    @cython.locals(state=u64, last=bint, new=bint, looked=bint, room=bint)
    cdef u64 _come(self) except? 0xFFFF
    @cython.locals(found=int)
    cpdef bint look(self, Party party, bint sleepy) except -1
    cpdef int expire(self, Party party) except -1
    cpdef int give_up(self, Party party) except -1
    @cython.locals(number=u64, coming=u64, value=u64, more=bint)
    cpdef bint announce(self, u64 state) except -1
    cdef int _note(self, u64 state) except -1
    cdef int _left(self, u64 state) noexcept
    @cython.locals(state=u64, ticket=u64, resets_ticket=u64)
    cdef int _found(self, u64 place) except -1
    cdef bint _acts(self, u64 place) except -1
    cdef int _require_party(self, u64 ident) except -1
    cdef int _act(self, u64 place, u64 ident) except -1
    @cython.locals(state=u64, ours=bint)
    cdef int _break(self, u64 place, u64 ident) except -1
    @cython.locals(number=u64)
    cdef bint _begin_anew(self, u64 state) except -1
    @cython.locals(ago=u64)
    cdef bint _was_reset(self, u64 number, u64 resets) except -1
    @cython.locals(at=u64, there=u64, later=u64, before=u64)
    cdef int _note_reset(self, u64 number, u64 reset) except -1
    @cython.locals(state=u64, number=u64)
    cpdef bint check_participants(self, u64 place) except -1
    @cython.locals(state=u64, lost=u64, fewer=u64, counted=bint, done=bint)
    cpdef bint regroup(self) except -1
    @cython.locals(lost=u64, made=u64, fewer=u64)
    cdef bint _make_room(self, u64 state) except -1
    @cython.locals(living=u64)
    cdef u64 _fewer(self, dict gone) except? 0xFFFF
    @cython.locals(ticket=u64)
    cdef u64 _look(self) except? 0xFFFF
    @cython.locals(ticket=u64)
    cpdef bint change(self, u64 state, u64 after) except -1
    @cython.locals(again=u64)
    cpdef u64 regrouped(self, u64 state) except? 0
    cdef u64 _state(self) except? 0xFFFF

cdef u64 _next(u64 state) noexcept
