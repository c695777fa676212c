cdef object _guarded(str what, str codec, decode)
