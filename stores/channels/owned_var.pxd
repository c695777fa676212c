from limpet.shm.endpoint.verbs cimport hash64
