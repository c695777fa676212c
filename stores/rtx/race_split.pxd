cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.race.index cimport Index, Place, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.splitter cimport Splitter
from limpet.stores.rtx.layout cimport LOCKED, POINTER, SLOT
from limpet.stores.rtx.lllock cimport LLLocks
from limpet.stores.status cimport *

cdef class TransactionSplitter(Splitter):
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly u64 link

    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(number=u64, at=u64, version=u64)
    cpdef int split(self, Place place) except -1
    cpdef bint is_current(self, Place place) except -1
    @cython.locals(
        index=Index, table=int, number=u64, first=u64, second=u64, at=int, word=u64, depth=int,
        slot=u64, held=u64, attempt=u64,
    )
    cpdef int fill_halves(self, object parent, dict halves) except -1
