"""Messages of wire.py, encoded and decoded; what the server makes of a phase is in phases.pyx."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset


from limpet.shm.net import wire
from limpet.shm.net.wire import WireError

cdef int ARGUMENTS[256]
for _operation in range(256):
    ARGUMENTS[_operation] = wire.OPERATIONS.get(_operation, -1)


cdef int arguments_of(int operation) noexcept:
    """The number of a verb's arguments; -1: it is none."""
    return ARGUMENTS[operation]


cdef Py_ssize_t padded(Py_ssize_t size) noexcept:
    return size + 7 & ~7


cdef Py_ssize_t room_of(int operation, Py_ssize_t size) noexcept:
    """Bytes of a verb's result in the answer."""
    if operation == READ:
        return padded(size)
    if operation in (WRITE, WRITE_IF, STORE, GUARD, ATTACH, MAKE):
        return 0
    return 8


cdef Header* header_of(bytes data) except NULL:
    """The header of a message, which is there as long as the message is."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Header* header = <Header*>PyBytes_AS_STRING(data)
    if size < <Py_ssize_t>sizeof(Header):
        raise WireError(f"a message of {size} bytes has no header")
    cdef bint is_kind = CHALLENGE <= header.kind <= TAKEN
    if is_kind and header.version != VERSION:
        raise WireError(
            f"the other side speaks version {header.version}, and this one {VERSION}"
        )
    if not is_kind or header.zero or header.size != size or size > MESSAGE_MAX:
        raise WireError("no header of a message")
    return header


cpdef int kind_of(bytes data) except -1:
    """The kind of a message. WireError: it has no header."""
    return header_of(data).kind


def opened(bytes data):
    """Kind, number and body of a message."""
    cdef Header* header = header_of(data)
    return header.kind, header.number, data[sizeof(Header):]


cdef bytes empty_message(int kind, u64 number, Py_ssize_t body):
    """A message whose body is still to be filled; WireError if it is too long."""
    if body > ROOM:
        raise WireError(f"a message of {body} bytes is longer than {ROOM}")
    made = PyBytes_FromStringAndSize(NULL, sizeof(Header) + body)
    cdef Header* header = <Header*>PyBytes_AS_STRING(made)
    header.kind = kind
    header.version = VERSION
    header.zero = 0
    header.size = sizeof(Header) + body
    header.number = number
    return made


cpdef bytes message(int kind, u64 number, bytes body=b""):
    """A message; WireError if it is too long."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    made = empty_message(kind, number, size)
    memcpy(PyBytes_AS_STRING(made) + sizeof(Header), PyBytes_AS_STRING(body), size)
    return made


cpdef bytes verb(
    int operation, u64 addr, u32 size=0, u64 first=0, u64 second=0, u64 third=0, u64 fourth=0,
    bytes data=b"", bint quiet=False
):
    """A verb as it goes into a phase. Arguments that it does not have are left out."""
    cdef u64 arguments[4]
    cdef Py_ssize_t given = 8 * ARGUMENTS[operation]
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t start = sizeof(VerbHead) + given
    cdef Py_ssize_t whole = start + padded(length)
    made = PyBytes_FromStringAndSize(NULL, whole)
    cdef char* at = PyBytes_AS_STRING(made)
    cdef VerbHead* head = <VerbHead*>at
    head.operation = operation
    head.flags = QUIET if quiet else 0
    head.zero = 0
    head.size = size
    head.addr = addr
    arguments[0] = first
    arguments[1] = second
    arguments[2] = third
    arguments[3] = fourth
    memcpy(at + sizeof(VerbHead), arguments, given)
    memset(at + start, 0, whole - start)
    memcpy(at + start, PyBytes_AS_STRING(data), length)
    return made


cdef class Answer:
    """The contents of an answer. `undone`: the nodes of which verbs were not done."""

    @property
    def results(self) -> bytes:
        return self.at[:self.size]


cpdef Answer answered(bytes data):
    """The answer in a message, which is one."""
    cdef Header* header = header_of(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t start = sizeof(Header) + sizeof(Status)
    cdef const char* at = PyBytes_AS_STRING(data)
    if size < start:
        raise WireError("half of an answer")
    cdef Status* status = <Status*>(at + sizeof(Header))
    cdef Py_ssize_t end = size - status.said - (NODES_SIZE if status.status else 0)
    if (
        status.status > REFUSED or status.lost > 1 or status.node > 255 or end < start
        or (status.said and not status.status)
    ):
        raise WireError("no answer")
    cdef Answer made = Answer.__new__(Answer)
    made.number = header.number
    made.status = status.status
    made.lost = status.lost
    made.node = status.node
    made.undone = wire.nodes_of(data[end : end + NODES_SIZE]) if status.status else frozenset()
    made.text = data[size - status.said:].decode(errors="replace") if status.said else ""
    made._data = data
    made.at = at + start
    made.size = end - start
    return made
