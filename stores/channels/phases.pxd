cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64

@cython.locals(ticket=u64, found=u64)
cpdef u64 load_alone(Endpoint endpoint, u64 addr) except? 0xFEEDFACEDEADBEA7
@cython.locals(ticket=u64, found=u64)
cpdef u64 cas_alone(
    Endpoint endpoint, u64 addr, u64 expected, u64 desired
) except? 0xFEEDFACEDEADBEA7
