cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.log cimport Log
from limpet.stores.rtx.participant cimport Participant
from limpet.stores.rtx.participants cimport give_back
from limpet.stores.rtx.try_commit cimport carry_out

@cython.locals(participant=Participant)
cpdef int abort(Log log, list participants, u64 state) except -1
