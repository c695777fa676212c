from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.trees cimport Leaf

cdef int NODE_SHIFT

cpdef Leaf as_staged(Page page, tree, at)
