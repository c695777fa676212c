cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.entry_log cimport Entry
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.log cimport Log
from limpet.stores.rtx.participant cimport Extent, Participant
from limpet.stores.rtx.parts cimport Part, part_at
from limpet.stores.rtx.tx_object cimport TXObj

@cython.locals(entry=Entry, part=Part)
cpdef list participants_of(Log log)
@cython.locals(left=list, participant=Participant, reference=u64)
cpdef int give_back(Log log, bint committed) except -1

@cython.locals(
    state=u64, word=u64, commits=bint, participants=list, participant=Participant, done=Py_ssize_t,
    count=Py_ssize_t,
)
cpdef bint carry_out(Log log) except -1

@cython.locals(participant=Participant)
cpdef int abort(Log log, list participants, u64 state) except -1
