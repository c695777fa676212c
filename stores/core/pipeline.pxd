cimport cython

from limpet.shm.endpoint.slots cimport MISSED
from limpet.stores.core.base cimport Store, Window, as_bytes
from limpet.stores.core.status cimport *

cdef tuple CALLS
cdef str UNKNOWN
cdef long long _forks

@cython.final
@cython.freelist(64)
cdef class Operation:
    cdef Pipeline pipeline
    cdef int mode
    cdef readonly bytes key
    cdef bytes value
    cdef object found
    cdef object default
    cdef object error
    cdef bint is_seen
    cdef long long turn
    cdef Operation twin
    cdef long long ended

    cdef int _finish(self) except -1

@cython.final
cdef class Pipeline:
    cdef readonly Store store
    cdef readonly int window
    cdef long long process
    cdef long long forks
    cdef list waiting
    cdef object ready
    cdef list failed
    cdef bint is_running
    cdef bint is_closed
    cdef long long turn
    cdef long long ended

    @cython.locals(operation=Operation)
    cdef Operation _issue(self, int mode, key, value, default)
    @cython.locals(operation=Operation)
    cdef object _unseen(self)
    cdef bint _has_ready(self) except -1
    cdef Operation _given(self, Operation operation)
    @cython.locals(operation=Operation)
    cdef int _drop_seen(self) except -1
    cdef int _require_usable(self) except -1
    @cython.locals(waiting=list, over=list, operation=Operation)
    cdef int _run(self) except -1
    @cython.locals(
        batch=list, twins=list, later=list, last=dict, operation=Operation, before=Operation,
    )
    cdef int _do_all(self, list waiting) except -1
    @cython.locals(start=Py_ssize_t)
    cdef int _do_apart(self, list batch) except -1
    @cython.locals(store=Store, singles=list, gets=list, changes=list, operation=Operation)
    cdef int _do(self, list batch) except -1
    @cython.locals(store=Store, window=Window, operation=Operation, reads=bint)
    cdef int _do_window(self, list gets, list changes, list singles) except -1
    @cython.locals(at=Py_ssize_t, operation=Operation, made=Py_ssize_t, missed=Py_ssize_t, store=Store)
    cdef int _end_window(self, Window window, list gets, list changes, list singles) except -1
    @cython.locals(store=Store)
    cdef int _do_singly(self, Operation operation) except -1
    cdef int _end(self, Operation operation, found) except -1
    cdef int _fail(self, Operation operation, error) except -1

cpdef long long _ended(Operation operation) except -1
cpdef bint _seen(Operation operation) except -1
