from limpet.stores.fusee.restoring cimport RestoredTables

cdef class SurveyedTables(RestoredTables):
    pass
