cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.transactions.entry_log cimport LogEntry
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.log cimport Log
from limpet.stores.transactions.participant cimport Extent, Participant
from limpet.stores.transactions.parts cimport Part, part_at
from limpet.stores.transactions.tx_object cimport TXObj

@cython.locals(entry=LogEntry, part=Part)
cpdef list participants_of(Log log)
@cython.locals(left=list, participant=Participant, reference=u64)
cpdef int give_back(Log log, bint committed) except -1

@cython.locals(state=u64, word=u64, commits=bint, participants=list)
cpdef bint carry_out(Log log) except -1

@cython.locals(participant=Participant, done=Py_ssize_t, count=Py_ssize_t)
cdef bint _apply(Log log, list participants, u64 state, bint publishes, bint commits) except -1

@cython.locals(participant=Participant)
cdef bint _is_ours(list participants) except -1

@cython.locals(participant=Participant)
cpdef int abort(Log log, list participants, u64 state) except -1
