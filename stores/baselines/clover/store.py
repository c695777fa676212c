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

Each memory node has a table, in which the metadata process assigns a head to each key:

    0     period   counts up before versions are taken off chains; 58,000 years of ten million a
                   second fit the word. No other word counts up
    64    heads    of the key's chain: reference of its oldest version that is left, or 0

Get: from a version that is remembered, or that the metadata process gives, follow the chain to its
end. Update: write a new version, CAS `newer` of the newest one from 0 to it; when the CAS fails,
try the version found there. Delete: CAS `newer` to DELETED. Insert: let the metadata process assign
a head, CAS it from 0. After that the client notifies the metadata process, and waits for no answer.

A handle remembers, for each key that it has met, the newest version that it has seen, with the
period. In another period that version may be freed, so the client asks the metadata process.

Why that is linearizable: a key has one chain, that of its head, and a chain only grows, at its
newest version, by CAS. Versions do not change, so a client that reads 0 in `newer` has the newest
version at that moment.

Collecting: a client takes a version that is not the newest off the front of its chain, or the last
version off a chain that has ended (CAS of the head), and frees it. In the paper the metadata
process does that. Here the metadata process only lists the chains that are due; every 64th update
of a client asks for them and collects them, because only a client of the pool, which other clients
can recover, may free memory. The client counts `period` up first. A client that is pinned and finds
`period` unchanged may use the version that it remembers: memory freed from then on is not used
again before its operation ends.

A kill of a client leaves behind: in its client journal (client.py), versions meant for a `newer` or
a head, which recovery links or frees; and chains not reported to the metadata process, which a
client collects later. A kill of the metadata process leaves nothing behind, and its index is lost;
the next one reads the keys of all heads from memory.

Limits of the paper
    - the metadata process is a single point of failure, and of congestion: while it stands still,
      all clients that do not find a key in their cache wait. When it was killed, the log says so,
      and the next client that needs it starts another
    - nothing is replicated
    - a chain that grows between two requests costs its readers a round trip for each version

Further limits: all clients are processes of one user, on one host and in one network namespace
(StoreError); a pool with `multi_host` or without hardware coherence is refused. Deviations: memory
comes from the pool's allocator, not from the metadata process; the paper's cache keeps a shortcut
in memory; it has no DELETE.

Round trips without conflict (a request is one): get 1, of a key that is not cached 2, missing 1;
update 1 and insert 2; delete 1.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.baselines.clover.chains import DELETED, Chains, Walk, newer_of
from limpet.stores.baselines.clover.parameters import CloverParameters
from limpet.stores.baselines.clover.remote import Remote
from limpet.stores.baselines.clover.server import (
    ASSIGN,
    DUE,
    DUE_MAX,
    HEADER,
    LOOKUP,
    NOTICE,
    REBUILD,
    table_of,
)
from limpet.stores.core.base import as_bytes
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
CACHE_MAX: Final = 1 << 17
"""Keys that a handle remembers; when there are more, it begins anew."""
FULL_MAX: Final = 6
"""How often the store is searched for heads to use again before it counts as full."""


class Clover(Chains):
    """The `clover` store. `CloverParameters`."""

    Parameters = CloverParameters
    remote: Remote
    """Absent while the handle is being made, and also afterwards if it met a damaged table."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: CloverParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.remote = Remote(pool, name, self.entry_word, self.tables, parameters.heads)
        self.cache: dict[bytes, tuple[int, int]] = {}
        """For each key, the period and the newest version that was seen."""
        self.changes = 0

    def replaced(self, node: int) -> None:
        super().replaced(node)
        self.remote.tables = self.tables

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip if it is cached, else 2; missing 1."""
        data = as_bytes("key", key)
        value = self._run(data, lambda: self._get_once(data)) if len(data) <= KEY_MAX else None
        return default if value is None else value

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 1 round trip if it is cached, else 2."""
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
        self.changes = 0
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
                f"{self.name}: no head is free for the key {key!r}; the store was made with "
                f"capacity {self.parameters.capacity}"
            )
        if outcome == DONE:
            self._tell(key)
        return int(outcome)

    def _run(self, key: bytes, once: Callable[[], Any], size: int = 0, mode: int = INSERT) -> Any:
        """Make attempts at an operation until one has a result; that result."""
        self.operations += 1
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

    def _period(self, key: bytes) -> int:
        return int(self.endpoint.load(self.tables[table_of(key, self.parameters.tables)]))

    def _cached(self, key: bytes, period: int) -> int:
        """A version of the key that may be used, or 0."""
        known, version = self.cache.get(key, (0, 0))
        return version if known == period else 0

    def _remember(self, key: bytes, period: int, version: int) -> None:
        if len(self.cache) >= CACHE_MAX:
            self.cache.clear()
        self.cache[key] = (period, version)

    def _get_once(self, key: bytes) -> Any:
        # ORDER: under the pin, and before anything else is read.
        period = self._period(key)
        start = self._cached(key, period) or self.remote.state(LOOKUP, key)[1]
        newest = self._follow(start) if start else 0
        if not newest:
            return None
        self._remember(key, period, newest)
        return self.objects.value()

    # ---- changing -------------------------------------------------------------------------------

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        period = self._period(key)
        start, head = self._cached(key, period), 0
        if not start:
            head, start = self.remote.state(LOOKUP if mode == UPDATE else ASSIGN, key)
        if start and mode == INSERT:
            start = self._follow(start)
            if start:
                return EXISTS
        if not start and mode == UPDATE:
            return MISSING
        version = self._make(key, value, size)
        if not version:
            return NO_MEMORY
        if start:
            outcome = self._append(period, key, version, start)
            if outcome == DONE or mode == UPDATE:
                return outcome
        if not head:
            head = self.remote.state(ASSIGN, key)[0]
            if not head:
                return FULL
        return self._begin(period, key, version, head)

    def _make(self, key: bytes, value: bytes, size: int) -> int:
        """A new version with this pair, in the client journal; 0: there is no memory ready."""
        version = self.allocator.allocate(table_of(key, self.parameters.tables), size)
        if version:
            self.objects.write(version, key, value)
        return int(version)

    def _append(self, period: int, key: bytes, version: int, start: int) -> int:
        """Link a version at the end of the chain of `start`; MISSING: the chain has ended."""
        walk = Walk()
        while True:
            at = newer_of(start)
            self.client.retarget(0, at)
            # LINEARIZES: update
            newer = self.endpoint.cas(at, 0, version)
            # CRASH(appended): the version is linked, but not reported to the metadata process.
            self.endpoint.wait()
            if newer == 0:
                self._remember(key, period, version)
                return DONE
            if newer == DELETED:
                return MISSING
            start = newer
            walk.step(start)

    def _begin(self, period: int, key: bytes, version: int, head: int) -> int:
        """Begin a chain with a version, at the key's head."""
        self._retire(head)
        self.client.retarget(0, head)
        # LINEARIZES: insert
        lost = self.endpoint.cas(head, 0, version)
        self.endpoint.wait()
        if lost:
            return AGAIN  # another client was faster
        self._remember(key, period, version)
        return DONE

    def _delete_once(self, key: bytes) -> int:
        period = self._period(key)
        version = self._cached(key, period) or self.remote.state(LOOKUP, key)[1]
        self.cache.pop(key, None)
        walk = Walk()
        while version not in (0, DELETED):
            walk.step(version)
            # LINEARIZES: delete
            newer = self.endpoint.cas(newer_of(version), 0, DELETED)
            self.endpoint.wait()
            if newer == 0:
                return DONE
            version = newer
        return MISSING

    # ---- collecting -----------------------------------------------------------------------------

    def _tell(self, key: bytes) -> None:
        """Report a change to the metadata process; now and then collect the chains due."""
        self.changes += 1
        self.pool.exclusively(lambda: self.remote.tell(NOTICE, key))
        if self.changes % DUE_MAX == 0:
            self._collect_due()

    def _collect_due(self) -> None:
        """Collect the chains that are due by the metadata process."""
        while True:
            answer = self.pool.exclusively(lambda: self.remote.ask(DUE))
            heads = np.frombuffer(answer, dtype="<u8").tolist()
            self._collect(heads)
            if len(heads) < DUE_MAX:
                return

    def _collect_all(self) -> None:
        for table in range(self.parameters.tables):
            with contextlib.suppress(NodeFailed):  # its chains are gone with it
                words = self.within(self._table, table)
                first = self.tables[table] + HEADER
                self._collect([first + 8 * i for i in np.flatnonzero(words).tolist()])

    def _collect(self, heads: list[int]) -> None:
        """Take all but the newest version off these chains; off those that have ended, all."""
        for done in range(0, len(heads), DUE_MAX):
            # one pin a batch: a pin held for long looks like a process that stands still
            batch = heads[done : done + DUE_MAX]
            self.pool.exclusively(functools.partial(self.while_there, self._collect_batch, batch))

    def _collect_batch(self, heads: list[int]) -> None:
        for head in heads:
            with contextlib.suppress(NodeFailed):  # its chain is gone with it
                self._retire(head)

    def _retire(self, head: int) -> None:
        endpoint = self.endpoint
        version = endpoint.load(head)
        counted = False
        walk = Walk()
        while version:
            walk.step(version)
            newer = endpoint.load(newer_of(version))
            if newer == 0:
                return
            if not counted:
                # ORDER: before the first version is unlinked.
                endpoint.faa(self.tables[head >> NODE_SHIFT], 1)
                counted = True
            place = self.client.log(version, head)
            endpoint.cas(head, version, 0 if newer == DELETED else newer)
            # CRASH(retired): the version is in the client journal and no longer linked.
            self.client.release(place)
            version = endpoint.load(head)
