cdef int SHORT

cdef object _guarded(str what, str codec, decode)
cpdef bytes pickled_key(object form)
cpdef bytes pickled_text(str key)
cpdef bytes pickled_whole(object key)
