from limpet.stores.rtx.reads cimport ReadPlace

cdef int AGAIN
cdef int DONE
cdef int FULL
cdef int NO_MEMORY
cdef int SPARED_BLOCKS
