from limpet.shm.endpoint.verbs cimport hash64
from limpet.stores.channels.layout cimport *
