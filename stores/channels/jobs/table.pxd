cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, Image, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.channel cimport Mark
from limpet.stores.channels.jobs.layout cimport *
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.phases cimport cas_alone, load_alone
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport DONE, EXISTS, FULL, NO_MEMORY

cdef class Job:
    cdef readonly u64 number
    cdef readonly u64 word
    cdef readonly u64 order
    cdef public u64 keep_us
    cdef public object data
    cdef public bytes reason

cdef class JobTable:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly object membership
    cdef readonly Allocator allocator
    cdef readonly Mark mark
    cdef readonly str name
    cdef readonly u64 control
    cdef readonly u64 places
    cdef readonly u64 maxsize
    cdef readonly u64 stride
    cdef readonly u64 links
    cdef readonly u64 results
    cdef readonly u64 heads
    cdef readonly u64 item_size
    cdef public u64 max_deliveries
    cdef u64[::1] header
    cdef u64[::1] words
    cdef u64[::1] near
    cdef u64[::1] lines
    cdef u64 seen
    cdef Image image
    cdef u64 width
    cdef readonly bint locked
    cdef public u64 buried
    cdef readonly u64 holder

    @cython.locals(endpoint=Endpoint, at=u64, mine=u64, look=int, word=u64, ticket=u64)
    cpdef bint lock(self, u64 place) except -1
    cpdef u64 look(self) except? 0xFFFF
    @cython.locals(endpoint=Endpoint, at=u64, mine=u64)
    cpdef int end(self, bint whole) except -1
    cdef bint _rebuilt(self) except -1
    @cython.locals(base=u64, at=u64)
    cdef u64 _post_place(self, u64 number) except? 0xFFFF
    @cython.locals(found=u64, base=u64)
    cdef u64 _base(self, u64 number) noexcept
    @cython.locals(base=u64)
    cdef u64 _word(self, u64 number, u64 offset) except? 0xFFFF
    @cython.locals(base=u64)
    cdef int _set(self, u64 number, u64 offset, u64 word) except -1
    @cython.locals(base=u64, at=u64, mask=u64)
    cdef int _set_half(self, u64 number, int shift, u64 place) except -1
    cdef int _post_control(self, u64 offset, u64 count) except -1
    @cython.locals(
        endpoint=Endpoint, place=u64, number=u64, size=u64, reference=u64, index=int, at=u64,
        base=u64, order=u64, offset=int,
    )
    cpdef int put(self, bytes data, u64 level, u64 due, u64 key) except -1
    @cython.locals(reference=u64)
    cdef u64 _link(self, u64 link, int words, bytes data) except? 0xFFFF
    @cython.locals(endpoint=Endpoint, ticket=u64)
    cdef int _linked(self, u64 link, u64 reference, int index) except -1
    @cython.locals(
        endpoint=Endpoint, kind=u64, place=u64, number=u64, at=u64, word=u64, count=u64, held=u64,
        size=u64, reference=u64, job=Job, base=u64, width=u64, least=u64, ticket=u64, place=u64,
    )
    cpdef object take(self, bint letters, u64 due)
    cpdef bint is_held(self, u64 number, u64 word, u64 order) except -1
    @cython.locals(letter=u64, key=u64)
    cpdef int ack(self, u64 number) except -1
    @cython.locals(letter=u64, key=u64, link=u64, reference=u64, index=int)
    cpdef bint keep(self, u64 number, u64 due, bytes data) except -1
    @cython.locals(done=u64, place=u64, number=u64)
    cpdef u64 forget(self, u64 now, u64 most) except? 0xFFFF
    cpdef u64 place_for(self, u64 key) except? 0xFFFF
    cpdef u64 order(self, u64 number) except? 0xFFFF
    @cython.locals(at=u64, word=u64, ticket=u64)
    cpdef u64 look_at(self, u64 number, u64 order) except? 0xFFFF
    cpdef u64 due(self, u64 number) except? 0xFFFF
    @cython.locals(address=u64)
    cpdef object result(self, u64 number)
    cpdef object reason(self, u64 number)
    cpdef int extend(self, u64 number, u64 due) except -1
    @cython.locals(at=u64, word=u64, letter=u64, state=u64, text=bytes)
    cpdef bint release(self, u64 number, u64 due, bytes reason) except -1
    cpdef int retry(self, u64 number) except -1
    @cython.locals(
        there=u64, steps=u64, owner=u64, lives=bint, number=u64, word=u64, due=u64, dropped=bint,
        job=Job,
    )
    cpdef tuple give_back(self, u64 now, dict mine)
    @cython.locals(place=u64, number=u64, due=u64)
    cpdef u64 ready_due(self, u64 now) except? 0xFFFF
    cpdef u64 count(self, u64 kind) except? 0xFFFF
    @cython.locals(others=u64)
    cpdef u64 ready(self) except? 0xFFFF
    cpdef u64 unfinished(self) except? 0xFFFF
    cpdef u64 node(self)
    @cython.locals(endpoint=Endpoint, at=u64, number=u64, word=u64, order=u64, offset=u64)
    cpdef int rebuild(self) except -1
    cdef u64 _number(self, u64 place) except? 0xFFFF
    cdef object _damaged(self, u64 number)
    cdef int _count(self, long long more) except -1
    cdef u64 _ends(self, u64 kind) noexcept
    @cython.locals(offset=u64)
    cdef int _set_ends(self, u64 kind, u64 ends, long long more) except -1
    cdef u64 _first(self, u64 kind) noexcept
    @cython.locals(
        steps=u64, due=u64, place=u64, other=u64, kind=u64, order=u64, before=u64,
    )
    cdef int _enlist(self, u64 number, u64 state) except -1
    cdef u64 _order(self, u64 place) except? 0xFFFF
    cdef int _append(self, u64 kind, u64 number) except -1
    @cython.locals(ends=u64, first=u64, last=u64, following=u64, other=u64)
    cdef int _insert(self, u64 kind, u64 number, u64 before) except -1
    @cython.locals(ends=u64, first=u64, last=u64, link=u64, following=u64, before=u64)
    cdef int _remove(self, u64 kind, u64 number) except -1
    @cython.locals(place=u64, number=u64, steps=u64)
    cdef u64 _find(self, u64 key) except? 0xFFFF
    @cython.locals(head=u64)
    cdef int _chain(self, u64 number, u64 key) except -1
    @cython.locals(at=u64, steps=u64, place=u64, following=u64, before=u64)
    cdef int _unchain(self, u64 number, u64 key) except -1
