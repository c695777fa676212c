"""Clover: data in passive memory, the index in a metadata process.

Tsai, Shan, Zhang: "Disaggregating persistent memory and controlling them remotely", ATC '20, as
FUSEE describes it (sections 2.2 and 6). A baseline, as small as is faithful.

    data path       one-sided: versions of a pair are objects, linked from older to newer
    metadata path   requests to a process that holds the index (server.py), which the first client
                    that needs it starts, and which ends with its last client (remote.py)

A version is an object with a log entry (stores/fusee/log.py), of which only one word is used:

    8     newer    0: this is the newest version; DELETED: it was the newest, and the key is
                   deleted; otherwise the reference of the next newer version. Changed once, from
                   0, by CAS

Each memory node has a table of rows, which the metadata process assigns to keys. All versions of a
key are on the node of its row:

    0     head      of the key's chain: reference of its oldest version that is left, or 0
    8     period    counts up before a version is taken off this chain. It fits the word for 58,000
                    years of ten million a second
    16    shortcut  a version of the chain, often the newest one; or no version: 0, or an odd number

Get: from a version that is remembered, or that the metadata process gives, follow the chain to its
end; where the remembered version is not the newest, go on at the shortcut. Update: write a new
version, CAS `newer` of the newest one from 0 to it; when the CAS fails, try the version found
there; then move the shortcut. Delete: CAS `newer` to DELETED. Insert: let the metadata process
assign a row, CAS its head from 0. After that the client notifies the metadata process, and waits
for no answer.

A handle remembers, for each key that it has met, its row, and the newest version that it has seen,
with the period: `cache_size` keys. In another period that version may be freed, so the
client asks the metadata process.

Why that is linearizable: a key has one chain, that of its head, and a chain only grows, at its
newest version, by CAS. Versions do not change, so a client that reads 0 in `newer` has the newest
version at that moment. A row is assigned to another key only when every client is unpinned that
has seen a chain there since its pin, or was given the row for the key.

Collecting: a client takes a version that is not the newest off the front of its chain, or the last
version off a chain that has ended (CAS of the head), and frees it. In the paper the metadata
process does that. Here the metadata process only lists the chains that are due; every 64th change
of a client asks for them and collects them, because only a client of the pool, which other clients
can recover, may free memory. For each version, after it has seen that it is not the newest, the
client counts `period` up. So a client that is pinned and finds `period` as it was when the version
was the newest may use it: memory freed from then on is not used again before its operation ends.

The shortcut never leads to a version that was taken off its chain:
    - it is changed only by CAS, from a word that was read in the same operation, before the version
      that it shall lead to was linked. No such word comes again meanwhile: the memory of a version
      is not used again while that client is pinned, and odd numbers are the period of an ended
      chain, times two, plus one
    - before a version is taken off, its collector moves the shortcut on, until it leads to another
      version, or, at the end of a chain, is a new odd number. From then on the CAS of a client that
      is late fails

A kill of a client leaves behind: in its client journal (client.py), versions meant for a `newer` or
a head, which recovery links or frees; and chains not reported to the metadata process, which a
client collects later. A kill of the metadata process leaves nothing behind, and its index is lost;
the next one reads the keys of all heads from memory.

A kill between a CAS of `newer` and that of the shortcut leaves a shortcut that lags.

Limits of the paper
    - the metadata process is a single point of failure, and of congestion: while it stands still,
      all clients that do not find a key in their cache wait. When it was killed, the log says so,
      and the next client that needs it starts another
    - nothing is replicated
    - a chain that grows between two requests costs its readers a round trip for each version

Further limits: all clients are processes of one user, on one host and in one network namespace
(StoreError); a pool with `multi_host` or without hardware coherence is refused. Deviations: memory
comes from the pool's allocator, not from the metadata process; the paper has no DELETE.

Round trips without conflict (a request is one): get 1, of a key that is not cached 2, missing 1;
update, insert and delete 2: the CAS comes after the look at `period`, or after the request. The
CAS of the shortcut and the notice are in the background.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.baselines.clover.chains import DELETED, Chains, Walk, is_version, newer_of
from limpet.stores.baselines.clover.parameters import CloverParameters
from limpet.stores.baselines.clover.remote import Remote
from limpet.stores.baselines.clover.server import (
    ASSIGN,
    DUE,
    DUE_MAX,
    LOOKUP,
    NOTICE,
    PERIOD,
    REBUILD,
    ROW,
    SHORTCUT,
    table_of,
)
from limpet.stores.core.base import as_bytes
from limpet.stores.core.names import LARGER
from limpet.stores.core.status import (
    AGAIN,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)

KEY_MAX: Final = 0xFFFF
FULL_MAX: Final = 6
"""How often the store is searched for rows to use again before it counts as full."""


@dataclasses.dataclass
class Chain:
    """The chain of a key, as one operation has found it."""

    row: int
    """0: the key has none."""
    period: int
    start: int
    """A version of the chain; 0: there is none."""
    shortcut: int


class Clover(Chains):
    """The `clover` store. `CloverParameters`."""

    Parameters = CloverParameters
    remote: Remote
    """Absent while the handle is being made, and also afterwards if it met a damaged table."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: CloverParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects.posts = True
        self.remote = Remote(pool, name, self.entry_word, self.tables, parameters.heads)
        self.cache: dict[bytes, tuple[int, int, int]] = {}
        """For each key its row, and the newest version that was seen, with the period."""
        self.change_count = 0

    def replaced(self, node: int) -> None:
        super().replaced(node)
        self.remote.tables = self.tables
        # The new memory has other rows.
        self.cache = {
            key: known for key, known in self.cache.items() if known[0] >> NODE_SHIFT != node
        }

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip if it is cached, else 2; missing 1."""
        data = as_bytes("key", key)
        value = self._run(data, lambda: self._get_once(data)) if len(data) <= KEY_MAX else None
        return default if value is None else value

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 2 round trips."""
        data = as_bytes("key", key)
        if len(data) > KEY_MAX or self._run(data, lambda: self._delete_once(data)) == MISSING:
            raise KeyError(key)
        self._tell(data)

    def recover(self) -> dict[str, Any]:
        """Recover dead clients, and collect all versions that are not the newest."""
        found: dict[str, Any] = self.pool.recover()
        self._collect_all()
        return found

    def forget(self) -> None:
        """Empty the handle's cache, and let the metadata process read its index anew."""
        self.cache.clear()
        self.change_count = 0
        if self.remote.connected:
            self.remote.ask(REBUILD)

    def let_go(self) -> None:
        if hasattr(self, "remote"):
            self.remote.close()

    def _write(self, key: Any, value: Any, mode: int) -> int:
        key, value = as_bytes("key", key), as_bytes("value", value)
        size = self.objects.size_of(key, value)
        outcome = self._run(key, lambda: self._write_once(key, value, size, mode), size, mode)
        if outcome == FULL:
            raise StoreFull(
                f"{self.name}: no row is free for the key {key!r}; the store was made with "
                f"capacity {self.parameters.capacity}; {LARGER}"
            )
        if outcome == DONE:
            self._tell(key)
        return int(outcome)

    def _run(self, key: bytes, once: Callable[[], Any], size: int = 0, mode: int = INSERT) -> Any:
        """Make attempts at an operation until one has a result; that result."""
        self._count(1, size > 0)
        attempt = full = 0
        while True:
            with self.client:
                self.require_there()
                outcome = once()
            if outcome == NO_MEMORY:
                node = table_of(key, self.parameters.tables)
                self.have_memory(key, mode, node, size)
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self.endpoint.pause(attempt)
            elif outcome == FULL and full < FULL_MAX:
                full += 1
                self._collect_all()
            else:
                return outcome

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready; if there is none, collect versions that were not reported as due."""
        self._collect_due()
        try:
            return super().find_memory(update, *wanted)
        except StoreFull:
            self._collect_all()
            return super().find_memory(update, *wanted)

    # ---- finding --------------------------------------------------------------------------------

    def _get_once(self, key: bytes) -> Any:
        chain, newest = self._newest(key, LOOKUP)
        if not newest:
            return None
        self._remember(key, chain, newest)
        return self.objects.value()

    def _newest(self, key: bytes, kind: int) -> tuple[Chain, int]:
        """The key's chain, and its newest version, read to the image; 0: there is none."""
        endpoint = self.endpoint
        row, period, version = self.cache.get(key, (0, 0, 0))
        if row:
            # ORDER: the period before what it proves. All of this is on one node.
            periods = endpoint.post_load(row + PERIOD)
            shortcuts = endpoint.post_load(row + SHORTCUT)
            self.objects.post(version)
            newer_ones = endpoint.post_load(newer_of(version))
            endpoint.wait()
            if endpoint.result(periods) == period:
                newer = endpoint.result(newer_ones)
                chain = Chain(row, period, version, endpoint.result(shortcuts))
                if newer == 0:
                    self.objects.arrived()
                    return chain, version
                if newer == DELETED:
                    return chain, 0
                further = is_version(chain.shortcut) and chain.shortcut != version
                return chain, self._follow(chain.shortcut if further else newer)
        chain = self._asked(key, kind)
        return chain, self._follow(chain.start) if chain.start else 0

    def _chain_of(self, key: bytes, kind: int) -> Chain:
        """The key's chain; one round trip."""
        row, period, version = self.cache.get(key, (0, 0, 0))
        if row:
            periods = self.endpoint.post_load(row + PERIOD)
            shortcuts = self.endpoint.post_load(row + SHORTCUT)
            self.endpoint.wait()
            if self.endpoint.result(periods) == period:
                shortcut = self.endpoint.result(shortcuts)
                start = shortcut if is_version(shortcut) else version
                return Chain(row, period, start, shortcut)
        return self._asked(key, kind)

    def _asked(self, key: bytes, kind: int) -> Chain:
        """The chain that the metadata process knows."""
        row, head, period, shortcut = self.remote.state(kind, key)
        start = shortcut if head and is_version(shortcut) else head
        return Chain(row, period, start, shortcut)

    def _remember(self, key: bytes, chain: Chain, version: int) -> None:
        size = self.parameters.cache_size
        if len(self.cache) >= size:
            self.cache.clear()
        if size:
            self.cache[key] = (chain.row, chain.period, version)

    # ---- changing -------------------------------------------------------------------------------

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        kind = LOOKUP if mode == UPDATE else ASSIGN
        if mode == INSERT:
            chain, newest = self._newest(key, kind)
            if newest:
                return EXISTS
        else:
            chain = self._chain_of(key, kind)
        if mode == UPDATE and not chain.start:
            return MISSING
        if not chain.row:
            return FULL
        version = self._make(key, value, size)
        if not version:
            return NO_MEMORY
        if mode != INSERT and chain.start:
            outcome = self._append(key, chain, version)
            if outcome == DONE or mode == UPDATE:
                return outcome
        return self._begin(key, chain, version)

    def _make(self, key: bytes, value: bytes, size: int) -> int:
        """A new version with this pair, posted, and in the client journal; 0: no memory is
        ready."""
        version = self.allocator.allocate(table_of(key, self.parameters.tables), size)
        if version:
            self.objects.write(version, key, value)
        return int(version)

    def _append(self, key: bytes, chain: Chain, version: int) -> int:
        """Link a version at the end of its chain; MISSING: the chain has ended."""
        walk = Walk()
        start = chain.start
        while True:
            at = newer_of(start)
            self.client.retarget(0, at)
            # ORDER: after the version, which is on the same node.
            # LINEARIZES: update
            ticket = self.endpoint.post_cas(at, 0, version)
            # CRASH(appended): the version is linked, but not reported to the metadata process.
            self.endpoint.wait()
            newer = self.endpoint.result(ticket)
            if newer == 0:
                self._linked(key, chain, version)
                return DONE
            if newer == DELETED:
                return MISSING
            start = newer
            walk.step(start)

    def _begin(self, key: bytes, chain: Chain, version: int) -> int:
        """Begin a chain with a version, in the key's row."""
        if chain.start:
            self._retire(chain.row)
        self.client.retarget(0, chain.row)
        # LINEARIZES: insert
        ticket = self.endpoint.post_cas(chain.row, 0, version)
        self.endpoint.wait()
        if self.endpoint.result(ticket):
            return AGAIN  # another client was faster
        self._linked(key, chain, version)
        return DONE

    def _linked(self, key: bytes, chain: Chain, version: int) -> None:
        """The version is the newest of its chain: remember it, and move the shortcut."""
        if not self.endpoint.durable:
            self.client.drop(0)  # it is linked, so the end of the operation need not look
        self._remember(key, chain, version)
        scope = self.endpoint.background(True)
        self.endpoint.post_cas(chain.row + SHORTCUT, chain.shortcut, version)
        self.endpoint.background(scope)

    def _delete_once(self, key: bytes) -> int:
        version = self._chain_of(key, LOOKUP).start
        self.cache.pop(key, None)
        walk = Walk()
        while version not in (0, DELETED):
            walk.step(version)
            # LINEARIZES: delete
            ticket = self.endpoint.post_cas(newer_of(version), 0, DELETED)
            self.endpoint.wait()
            newer = self.endpoint.result(ticket)
            if newer == 0:
                return DONE
            version = newer
        return MISSING

    # ---- collecting -----------------------------------------------------------------------------

    def _tell(self, key: bytes) -> None:
        """Report a change to the metadata process; now and then collect the chains due."""
        self.change_count += 1
        self.pool.exclusively(lambda: self.remote.tell(NOTICE, key))
        if self.change_count % DUE_MAX == 0:
            self._collect_due()

    def _collect_due(self) -> None:
        """Collect the chains that are due by the metadata process."""
        scope = self.endpoint.background(True)
        try:
            while True:
                answer = self.pool.exclusively(lambda: self.remote.ask(DUE))
                rows = np.frombuffer(answer, dtype="<u8").tolist()
                self._collect(rows)
                if len(rows) < DUE_MAX:
                    return
        finally:
            self.endpoint.background(scope)

    def _collect_all(self) -> None:
        for table in range(self.parameters.tables):
            with contextlib.suppress(NodeFailed):  # its chains are gone with it
                heads = self.within(self._table, table)
                first = self.tables[table]
                self._collect([first + ROW * i for i in np.flatnonzero(heads).tolist()])

    def _collect(self, rows: list[int]) -> None:
        """Take all but the newest version off these chains; off those that have ended, all."""
        for done in range(0, len(rows), DUE_MAX):
            # one pin a batch: a pin held for long looks like a process that stands still
            batch = rows[done : done + DUE_MAX]
            self.pool.exclusively(functools.partial(self.while_there, self._collect_batch, batch))

    def _collect_batch(self, rows: list[int]) -> None:
        for row in rows:
            with contextlib.suppress(NodeFailed):  # its chain is gone with it
                self._retire(row)

    def _retire(self, row: int) -> None:
        endpoint = self.endpoint
        version = endpoint.load(row)
        walk = Walk()
        while version:
            walk.step(version)
            newer = endpoint.load(newer_of(version))
            if newer == 0:
                return
            following = 0 if newer == DELETED else newer
            # ORDER: after the look that shows that the version is not the newest, and before it is
            # taken off its chain.
            ended = endpoint.faa(row + PERIOD, 1) + 1
            self._move_shortcut(row, version, following or ended << 1 | 1)
            place = self.client.log(version, row)
            endpoint.cas(row, version, following)
            # CRASH(retired): the version is in the client journal and no longer linked.
            self.client.release(place)
            version = endpoint.load(row)

    def _move_shortcut(self, row: int, version: int, further: int) -> None:
        """Before this version is taken off: have the shortcut lead to another one, or to none."""
        while True:
            word = self.endpoint.load(row + SHORTCUT)
            if is_version(word) and word != version:
                return
            # ORDER: after the shortcut. If the version is off its chain already, so may be the
            # next one; if it is not, the next one leaves only after the shortcut has changed.
            if self.endpoint.load(row) != version:
                return
            if self.endpoint.cas(row + SHORTCUT, word, further) == word:
                return
