cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.log cimport Log
from limpet.stores.rtx.participant cimport Participant
from limpet.stores.rtx.participants cimport participants_of

@cython.locals(
    state=u64, word=u64, commits=bint, participants=list, participant=Participant, done=Py_ssize_t,
    count=Py_ssize_t,
)
cpdef bint carry_out(Log log) except -1
