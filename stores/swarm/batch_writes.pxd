cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.status cimport LEFT, MADE, READY
from limpet.stores.race.batch cimport Batch
from limpet.stores.race.batch_puts cimport BatchPuts
from limpet.stores.swarm.batch_reads cimport BatchRows
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.safe_guess cimport SafeGuess
from limpet.stores.swarm.words cimport is_tombstone

cdef int SPARE_PLACES

cdef class BatchWrites(BatchPuts):
    cdef readonly BatchRows rows
    cdef readonly Finder finder
    cdef readonly object view

    @cython.locals(rows=BatchRows, unknown=int, row=int, register=KeyRegister)
    cpdef int find_all(self, Batch batch) except -1
    @cython.locals(quorum=Quorum, row=Row)
    cdef bint _is_in_order(self, KeyRegister register) except -1
    @cython.locals(
        allocator=Allocator, client=Client, count=int, named=int, row=int, register=KeyRegister, size=u64,
        node=u64, reference=u64, value=bytes,
    )
    cpdef int make_all(self, Batch batch) except -1
    @cython.locals(doubtful=bint, row=int)
    cpdef int change_all(self, Batch batch) except -1
    @cython.locals(posted=bint)
    cpdef bint _post_all(self, Batch batch) except -1
    @cython.locals(row=int, register=KeyRegister, protocol=SafeGuess)
    cdef bint _posted(self, Batch batch) except -1
    @cython.locals(
        register=KeyRegister, protocol=SafeGuess, outcome=int, cache=LocationCache
    )
    cdef int _finish(self, Batch batch, int row, bint doubtful) except -1
