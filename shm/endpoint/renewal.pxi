# Part of verbs.pyx: the thread that renews a client's lease.

cdef class Renewal:
    """Renews the lease of the client whose slot, at the address `slot`, has the state word `word`,
    from a thread that does not need the interpreter, four times each `lease_us`, until `stop`.

    Raises OSError if no thread can be started. shm/clients/fencing.py says what it does.
    """

    cdef limpet_lease* _lease
    cdef object _keep

    def __cinit__(
        self, Endpoint endpoint, u64 slot, u64 word, u64 lease_us, int beat, int fence, int pin,
        int progress,
    ):
        cdef char* at = endpoint._word(slot)
        self._keep = endpoint._keep[slot >> 40]
        self._lease = limpet_lease_begin(at, word, lease_us, beat, fence, pin, progress)
        if self._lease == NULL:
            raise OSError(errno, os.strerror(errno))

    def stop(self):
        """End the thread. May be called twice; in a forked child, which has no such thread."""
        if self._lease != NULL:
            limpet_lease_end(self._lease)
            self._lease = NULL
            self._keep = None

    def __dealloc__(self):
        if self._lease != NULL:
            limpet_lease_end(self._lease)
