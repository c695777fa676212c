cimport cython
# By the name of its module: tests replace the class where it is made.
cimport limpet.stores.rtx.execution as executing

cdef int AGAIN
cdef int NO_MEMORY
cdef int SPARED_BLOCKS
cdef tuple UNSTARTED

@cython.locals(transaction=executing.Transaction, counted=int, reach=int, reading=bint)
cpdef run(pool, work, attempts)
