cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.entry_log cimport Entry
from limpet.stores.rtx.extents cimport Extent
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.log cimport Log
from limpet.stores.rtx.participant cimport Participant
from limpet.stores.rtx.parts cimport Part, part_at
from limpet.stores.rtx.tx_object cimport TXObj

@cython.locals(entry=Entry, part=Part)
cpdef list participants_of(Log log)
@cython.locals(left=list, participant=Participant, reference=u64)
cpdef int give_back(Log log, bint committed) except -1
