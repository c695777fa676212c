"""C-level face of codec.pyx."""

from limpet.shm.net.wire cimport *

ctypedef unsigned char u8
ctypedef unsigned short u16
ctypedef unsigned int u32
ctypedef unsigned long long u64

cdef struct Header:
    u8 kind
    u8 version
    u16 zero
    u32 size
    u64 number

cdef struct VerbHead:
    u8 operation
    u8 flags
    u16 zero
    u32 size
    u64 addr

cdef struct Status:
    u8 status
    u8 lost
    u16 node
    u32 said

cdef class Answer:
    cdef readonly u64 number
    cdef readonly int status
    cdef readonly bint lost
    cdef readonly int node
    cdef readonly object undone
    cdef readonly str text
    cdef bytes _data
    cdef const char* at
    cdef Py_ssize_t size

cdef int arguments_of(int operation) noexcept
cdef Py_ssize_t padded(Py_ssize_t size) noexcept
cdef Py_ssize_t room_of(int operation, Py_ssize_t size) noexcept
cdef Header* header_of(bytes data) except NULL
cpdef int kind_of(bytes data) except -1
cdef bytes empty_message(int kind, u64 number, Py_ssize_t body)
cpdef bytes message(int kind, u64 number, bytes body=*)
cpdef bytes verb(
    int operation, u64 addr, u32 size=*, u64 first=*, u64 second=*, u64 third=*, u64 fourth=*,
    bytes data=*, bint quiet=*
)
cpdef Answer answered(bytes data)
