from limpet.stores.channels.layout cimport *
