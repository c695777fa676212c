cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.times cimport US
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.jobs.layout cimport *
from limpet.stores.channels.jobs.table cimport Job, JobTable
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.regions.region cimport *
from limpet.stores.channels.waiting cimport Wait, Waiting, deadline_after, deadline_of
from limpet.stores.core.status cimport DONE, EXISTS, FULL, NO_MEMORY

cdef int ACK
cdef int EXTEND
cdef int KEEP
cdef int LONGEST_S
cdef int NACK
cdef int RETRY

cdef class Delivery:
    cdef readonly JobQueue queue
    cdef readonly Job job
    cdef readonly bint settled
    cdef long long forks

    cdef int _settle(self, int what, u64 delay_us, bytes reason) except -1
    cdef int _check(self) except -1

cdef class JobQueue(Channel):
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly u64 maxsize
    cdef readonly u64 largest
    cdef readonly u64 visibility_us
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly Waiting changes
    cdef readonly JobTable table
    cdef u64 looked
    cdef readonly dict mine

    @cython.locals(attempt=int, table=JobTable, taken=bint)
    cdef int _begin(self, u64 place) except -1
    @cython.locals(word=u64, sound=bint)
    cdef int _begin_look(self) except -1
    @cython.locals(ended=bint)
    cdef int _finish(self, bint whole) except -1
    @cython.locals(
        status=int, last=Py_ssize_t, table=JobTable, whole=bint, due=u64, room=bint, place=u64,
    )
    cdef tuple _put_some(
        self, list waiting, Py_ssize_t done, u64 level, u64 delay_us, u64 key, Wait wait
    )
    @cython.locals(wait=Wait, status=int, found=tuple)
    cdef tuple _put_one(self, list waiting, u64 level, u64 delay_us, u64 key, deadline)
    @cython.locals(wait=Wait, found=list, whole=bint, now=u64, due=u64)
    cpdef list deliver(self, Py_ssize_t limit, bint letters, deadline)
    @cython.locals(table=JobTable, whole=bint, now=u64, due=u64, ready=u64, forgotten=u64)
    cdef tuple _deliver(self, Py_ssize_t limit, bint letters, list found, Wait wait)
    @cython.locals(due=u64, job=Job, delivery=Delivery)
    cdef int _take(self, Py_ssize_t limit, bint letters, u64 now, list found) except -1
    cdef tuple _look(self, u64 now)
    cpdef int drop(self, Job job) except -1
    cdef int _forget(self, Job job) except -1
    cpdef int settle(self, Job job, int what, u64 delay_us, bytes text) except -1
    @cython.locals(
        table=JobTable, whole=bint, letter=bint, due=u64, ours=bint, held=bint, finished=bint,
        done=bint,
    )
    cdef bint _settle(self, Job job, int what, u64 delay_us, bytes text) except -1
    @cython.locals(table=JobTable, whole=bint, failed=bint, over=bint)
    cdef object _result(self, job, u64 word)
