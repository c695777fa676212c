cdef int WORD
