cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.check cimport SurveyedTables
from limpet.stores.fusee.tables cimport identity
from limpet.stores.race.old.store cimport is_frozen
from limpet.stores.race.old.index cimport is_vacant, is_valid
from limpet.stores.race.old.table cimport Race

cdef u64 BIRTH
cdef u64 DEATH
cdef u64 GONE
cdef u64 INSERTED
cdef u64 OLD
cdef u64 PATIENCE
cdef u64 FROZEN
cdef u64 OBJECT_MASK
cdef u64 REPLICAS_ROW

cdef int AGAIN
cdef int DELETING
cdef int DONE
cdef int FAILED
cdef int FULL
cdef int IDLE
cdef int INSERTING
cdef int UPDATING

cdef class Snapshot(SurveyedTables):
    cdef bint sequential
    cdef u64[::1] seen
    cdef int doing
    cdef u64 at_home
    cdef u64 old
    cdef u64 new

    @cython.locals(old=int)
    cdef int _replace(self, u64 slot, u64 word, u64 desired) except -1
    @cython.locals(ticket=u64, old=int, won=bint)
    cdef int _remove(self, u64 slot, u64 word) except -1
    cdef bint _is_frozen_at(self, u64 slot, u64 word) except -1
    cdef int _mark_alone(self, u64 word) except -1
    cdef int _begin(self, int doing, u64 slot, u64 old, u64 new) except -1
    @cython.locals(still=bint, was=u64)
    cdef bint _round(self, u64 slot, u64 old, u64 new) except -1
    cdef int _mark_end(self, u64 old, u64 winner) except -1
    @cython.locals(won=bint)
    cdef bint _has_won(self, u64 old, u64 new) except -1
    @cython.locals(ours=bint, k=u64, was=u64)
    cdef bint _propose(self, u64 slot, u64 old, u64 new) except -1
    @cython.locals(k=u64)
    cdef int _spread(self, u64 slot, u64 winner) except -1
    @cython.locals(least=u64, k=u64, count=u64, other=u64)
    cdef u64 _winner(self) noexcept
    @cython.locals(attempt=u64)
    cdef int _await(self, u64 slot, u64 old) except -1
    @cython.locals(still=bint, winner=u64)
    cdef int _help(self, u64 slot, u64 old) except -1
    @cython.locals(proposal=u64, k=u64, was=u64)
    cdef int _fill(self, u64 slot, u64 old) except -1
    @cython.locals(differs=bint, k=u64)
    cdef bint _look_at_backups(self, u64 slot, u64 value) except -1
    @cython.locals(index=int, slot=u64, vacant=u64, ours=bint, still=bint, won=bint)
    cdef int _insert(self, bytes key, u64 desired, u64 attempt) except -1
    cdef int _read_backup(self, int row) except -1
    cdef int _withdraw(self, u64 desired, bint hurry) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, slot=u64)
    cdef bint _rival_found(self, bytes key, int own, u64 attempt) except -1
    @cython.locals(word=u64)
    cdef bint _key_in(self, u64 slot, bytes key) except -1
    @cython.locals(theirs=u64)
    cdef bint _yield_to(self, u64 slot, u64 word, int own, u64 attempt) except -1
    @cython.locals(slot=u64, attempt=u64, word=u64, linked=bint, others=int, same=int, k=u64)
    cpdef bint resolve(self, u64 reference, u64 home, bint hurry) except -1
    @cython.locals(k=u64, backup=u64, there=u64, was=u64)
    cdef int _even_out(self, u64 slot, u64 word) except -1
    @cython.locals(held=int, linked=bint)
    cdef int _help_out(self, u64 slot, u64 word) except -1
    @cython.locals(ticket=u64, held=int, lost=bint, k=u64)
    cdef int _void(self, u64 slot, u64 vacant) except -1
    @cython.locals(backup=u64, word=u64, current=u64, done=bint)
    cdef int _clear(self, u64 slot, u64 k, u64 ticket) except -1
    cdef int _recall(self, int node) except -2
    @cython.locals(word=u64)
    cdef int _outcome(self) except -2
