cimport cython

from limpet.stores.core.status cimport *
from limpet.stores.transactions.layout cimport *

# By the name of its module: tests replace the class where it is made.
cimport limpet.stores.rtx.execution as executing

cdef tuple UNSTARTED

@cython.locals(transaction=executing.Transaction, counted=int, reach=int, reading=bint)
cpdef run(pool, work, attempts)
