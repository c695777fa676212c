cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.baselines.dtx.log cimport NodeLog
from limpet.stores.sherman.in_place_commit cimport InPlaceCommit
from limpet.stores.sherman.in_place_trees cimport InPlaceNode
from limpet.stores.transactions.entry_log cimport LogEntry, log_size
from limpet.stores.transactions.staged cimport StagedNode

cdef class LoggedCommit(InPlaceCommit):
    cdef readonly NodeLog opened
    cdef readonly NodeLog log
    cdef Py_ssize_t entries_wanted
    cdef list changes

    cpdef begin(self, u64 link)
    @cython.locals(reference=u64)
    cpdef int open(self) except -1
    cpdef list _sizes(self)
    @cython.locals(node=StagedNode, count=Py_ssize_t)
    cdef Py_ssize_t _changed(self) except -1
    cdef u64 _log_size(self) except? 0
    @cython.locals(
        news=list, node=u64, images=list, _=Py_ssize_t, log=NodeLog, entries=Py_ssize_t, room=u64,
        index=int, going=list, changes=list, at=u64, changed=InPlaceNode, image=u64, old=u64,
    )
    cpdef bint _prepare(self) except -1
    @cython.locals(locked=bint)
    cpdef bint _lock_rest(self) except -1
    @cython.locals(at=u64, node=InPlaceNode, changed=InPlaceNode, image=u64, nodes=list)
    cpdef list _decide(self)
    cpdef int _finish(self) except -1
    cpdef int give_up(self) except -1
