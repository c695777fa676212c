"""C-level face of server.py."""

cimport cython

from limpet.shm.endpoint.layout cimport (
    CLIENT_SLOTS,
    CONTROL_NODE,
    NODE_STATES,
    SLOT_SIZE,
    SUPERBLOCK_SIZE,
)
from limpet.shm.endpoint.slots cimport FIGURES, FIGURES_COUNT, LIVE, STATE_SHIFT
from limpet.shm.endpoint.states cimport EXCLUDED
from limpet.shm.net.codec cimport kind_of, message
from limpet.shm.net.libfabric cimport Connection, Domain, Event
from limpet.shm.net.phases cimport Phases
from limpet.shm.net.wire cimport *

cdef class Session:
    cdef public object server
    cdef public object connection
    cdef public bytes challenge
    cdef public double since_s
    cdef public bytes side
    cdef public object endpoint
    cdef public tuple guarded
    cdef public object sightings

    cpdef int guard(self, addr, word) except -1
    cpdef int attach(self, node, state) except -1
    cpdef object back(self, addr, size)
    cpdef object evict(self, slot, word)
    cpdef int make(self, node, generation) except -1

cdef class Server:
    cdef public str url
    cdef public str name
    cdef public str host
    cdef public int port
    cdef public bytes secret
    cdef public int clients
    cdef public object location
    cdef public object options
    cdef public object parameters
    cdef public object uuid
    cdef public object control
    cdef public object ledger
    cdef public object evictions
    cdef public bint tells
    cdef public int claimed
    cdef public object entry
    cdef public tuple own
    cdef public dict segments
    cdef public dict sessions
    cdef public Phases phases
    cdef public bint _stopped
    cdef public dict asking
    cdef public list verdicts
    cdef public object endpoint
    cdef public frozenset served
    cdef public object listener

    @cython.locals(domain=Domain, look=double)
    cpdef object run(self)
    @cython.locals(session=Session)
    cdef int _handle(self, Event event) except -1
    cdef int _serve(self, Session session, Event event) except -1
    cdef int _send(self, Session session, bytes data) except -1
    @cython.locals(kind=int)
    cdef int _message(self, Session session, bytes data) except -1
