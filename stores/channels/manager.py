"""The manager of a pool handle: makes and finds channels, and orders their verbs.

(LOCO sections 4.2, 5.2 and 5.3.) A channel's own region has the channel's full name. The region of
a part has `@` and the mark of the channel's own region behind its name, so that what is left of a
removed channel is not taken for parts of the next channel of the same name.

The fences. In the paper a verb may be placed after the next one; a fence waits for those before it.
Here, too, a phase is a round trip that ends with `wait`, and verbs on one memory node are carried
out in order (FIFO). So, for verbs that the threads of this process have issued and not waited for:

    PAIR     verbs of this thread on one node before later ones on it     nothing to wait for
    THREAD   verbs of this thread before later ones, on any node          one round trip, if any
    GLOBAL   verbs of all threads before later ones, on any node          one round trip, if any

The threads of a process share one endpoint, so one `wait` completes the verbs of all of them.

An `AckKey` tells whether operations on channels are complete (LOCO 5.2). The paper's key is a set
of bits, one for each verb on its way, which a polling thread clears. Here all verbs of a process
that are on their way make up a phase, and become complete together (the manager counts phases): a
key is the set of the phases of its verbs.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Final

from limpet.shm.errors import (
    ChannelRemoved,
    NodeFailed,
    ParameterError,
    StoreCorrupt,
    StoreFull,
    StoreMismatch,
    ValueTooLarge,
)
from limpet.shm.late import late
from limpet.shm.replicas.view import IN_SERVICE
from limpet.stores.channels.regions.region import Links, Region
from limpet.stores.core.names import NAME_SIZE_MAX, is_name
from limpet.stores.registry import CHANNELS


class AckKey:
    """The completion of one or more operations on channels."""

    def __init__(self, manager: Any, phases: set[int]) -> None:
        self.manager = manager
        self.phases = phases

    def query(self) -> bool:
        """Whether all of them are complete, without waiting."""
        return all(phase <= self.manager.completed for phase in self.phases)

    def wait(self) -> None:
        """Wait until they are: at most one round trip."""
        if self.phases:
            self.manager.wait_for(max(self.phases))

    def union(self, *others: AckKey) -> AckKey:
        """One key for these operations and those of `others`."""
        return AckKey(self.manager, self.phases.union(*(other.phases for other in others)))

    __or__ = union


PAIR: Final = "pair"
THREAD: Final = "thread"
GLOBAL: Final = "global"
SCOPES: Final = (PAIR, THREAD, GLOBAL)

_opening = threading.RLock()


def opening() -> threading.RLock:
    """Held while a channel is opened, so that threads get the same endpoint."""
    return _opening


def _is_name(name: object) -> bool:
    """Whether this can be the name of a channel without parent: no part has such a name."""
    return is_name(name, without="/.@")


def _mark_of(channel: Any) -> int:
    """The mark of a channel whose constructor may have raised; 0: it did before there was one."""
    marked = getattr(channel, "marked", None)
    return 0 if marked is None else int(marked.number)


def _root(name: str) -> str:
    """The name of the channel without parent that a part, or its region, belongs to."""
    return re.split("[/.@]", name, maxsplit=1)[0]


def _renew_lock() -> None:
    global _opening
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Manager:
    """Makes the endpoints of channels of one pool handle: `pool.channels`."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.handles: weakref.WeakValueDictionary[tuple[type, str], Any] = (
            weakref.WeakValueDictionary()
        )
        self.issued = 0
        """The phases that channels have begun, and those of them that are complete."""
        self.completed = 0
        self._outstanding: set[int] = set()
        """Threads that have issued verbs since the last phase ended."""
        self.replacements = 0
        """How often a node was given new memory."""
        self._marks: set[weakref.ref[Any]] = set()
        pool.handles.add(self)

    @functools.cached_property
    def catalogue(self) -> Any:
        """The regions of channels, by name."""
        return self.pool.store("channels", name=CHANNELS)

    # ---- channels ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Have a NodeFailed of the body say what cannot be opened, while the node is lost; and
        StoreFull and ValueTooLarge which channel there is no memory for."""
        try:
            yield
        except NodeFailed as error:
            if self.pool.view.states()[error.node] != IN_SERVICE:
                error.args = (
                    f"{self.pool.url}: the channel {name!r} cannot be opened: {error}; "
                    f"pool.replace_node({error.node}) gives the node new memory; a channel of "
                    "another name may need only the other nodes",
                )
            raise
        except (StoreFull, ValueTooLarge) as error:
            url = self.pool.url
            why = str(error).removeprefix(f"{url}: ")
            error.args = (f"{url}: there is no memory for the channel {name!r}: {why}",)
            raise

    def open(self, cls: Any, name: str, **parameters: Any) -> Any:
        """The endpoint of a channel, of the class `cls`; the same one for all threads.

        Raises StoreMismatch when this process has opened it with other parameters.
        """
        with opening():
            found = self.handles.get((cls, name))
            if found is None or found.removed():
                if not _is_name(name):
                    raise ParameterError(
                        f"a channel's name is text of 1 to {NAME_SIZE_MAX} bytes of UTF-8, without "
                        f"'/', '.', '@' and zero bytes, not {name!r}"
                    )
                with self._naming(name):
                    found = self._made(cls, name, parameters)
                found.parameters = parameters
                self.handles[cls, name] = found
        if found.parameters != parameters:
            raise StoreMismatch(
                f"{self.pool.url}: this process has opened {name!r} with {found.parameters}, not "
                f"with {parameters}"
            )
        return found

    def _made(self, cls: Any, name: str, parameters: dict[str, Any]) -> Any:
        """A new endpoint. If the channel cannot be made, nothing of it is left (catalogue.py).

        A channel that another client removes, or gives up, while we make it is begun anew.
        """
        again = False
        while True:
            found = cls.__new__(cls)
            try:
                found.__init__(self, name, **parameters)
                if self.catalogue.confirm(found):
                    return found
            except ChannelRemoved:
                mark = _mark_of(found)
                if mark and found.removed():
                    continue
                # It is another one, or a part of ours that a client has given up before it died.
                if mark:
                    self.catalogue.give_up(name, mark)
                if again:
                    raise
                again = True
            except (StoreFull, ValueTooLarge, NodeFailed):
                there = False
                if self._has_memory():
                    with contextlib.suppress(StoreFull, NodeFailed):
                        there = self.catalogue.give_up(name, _mark_of(found))
                if again or not there:
                    raise
                again = True  # another client had room for it

    def attach(self, cls: Any, name: str, given: dict[str, Any], usual: dict[str, Any]) -> Any:
        """As `open`. A parameter that is None in `given` is that of the channel that is there, or,
        if there is none, from `usual`.

        Raises ParameterError if there is no channel and a parameter has no usual value.
        """
        given = {key: value for key, value in given.items() if value is not None}
        complete = given.keys() >= usual.keys()
        while True:
            there = {} if complete else self.parameters_of(cls, name)
            chosen = {key: there.get(key, value) for key, value in usual.items()} | given
            if lacking := [key for key, value in chosen.items() if value is None]:
                raise ParameterError(
                    f"{self.pool.url} has no {cls.__name__.lower()} {name!r}; to make one, say its "
                    f"{' and '.join(lacking)}"
                )
            try:
                return self.open(cls, name, **chosen)
            except StoreMismatch:
                # Another process may have made it, or one with other parameters, since we looked.
                if complete or self.parameters_of(cls, name) == there:
                    raise

    def parameters_of(self, cls: Any, name: str) -> dict[str, Any]:
        """The parameters of a channel that is there; {}: none is found."""
        with opening():
            found = self.handles.get((cls, name))
        if found is not None and not found.removed():
            return dict(found.parameters)
        return dict(self._described(name).get("parameters") or {})

    def kind_of(self, name: str) -> str:
        """The kind of the channel of that name; "": none is found."""
        return str(self._described(name).get("kind", ""))

    def _described(self, name: str) -> dict[str, Any]:
        described: dict[str, Any] = {}
        if _is_name(name) and self._has_memory():
            with contextlib.suppress(NodeFailed):  # `open` raises it
                described = self.catalogue.describe(name.encode())
        return described

    def require_not_lost(self, name: str) -> None:
        """Raise NodeFailed if a channel that is not found was lost, or may have been."""
        if _is_name(name) and self._has_memory():
            self.catalogue.require_not_lost(name)

    def follow(self, mark: Any) -> None:
        """Tell a mark, as long as it is there, which nodes are replaced."""
        self._marks.add(weakref.ref(mark, self._marks.discard))

    def replaced(self, node: int) -> None:
        """From now on, `node` has new memory."""
        self.replacements += 1
        for found in list(self._marks):
            mark = found()
            if mark is not None:
                mark.replaced(node)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of channels of {self.pool.url}>"

    def let_go(self) -> None:
        """The pool's handle was closed."""

    def forget(self, channel: Any) -> None:
        """Forget an endpoint: the next `open` of this channel makes another one."""
        place = (type(channel), channel.name)
        if self.handles.get(place) is channel:
            del self.handles[place]

    def region(
        self,
        name: str,
        size: int,
        *,
        node: int | None = None,
        kind: str = "",
        parameters: Any = None,
        of: int = 0,
        links: Links | None = None,
        anew: bool = False,
    ) -> Region:
        """The region of that full name, zeros if it was not there.

        `kind` and `parameters`: of the channel, for its own region. `of`: the channel's mark, for
        the region of a part. `links`, `anew`: see catalogue.py.
        """
        description = {"kind": kind, "parameters": parameters} if kind else {}
        if links is not None:
            description["links"] = list(links)
        found: Region = self.catalogue.region(name, size, description, of, node, anew)
        return found

    def list(self, state: bool = False) -> list[dict[str, Any]]:
        """The channels that have no parent: name, kind, parameters, size of all memory in bytes;
        with `state` also their `state`: holders, waiters, lengths (states.py).

        Regions on a lost node are left out. Kind "lost": parts of it are there, and its own region,
        which has the kind, is lost.
        """
        found: dict[str, dict[str, Any]] = {}
        for key in self._keys():
            described: dict[str, Any] = {}
            with contextlib.suppress(NodeFailed):
                described = self.catalogue.describe(key)
            full = self._text(key)
            name = _root(full)
            entry = found.setdefault(name, {"name": name, "kind": "", "parameters": {}, "size": 0})
            entry["size"] += described.get("size", 0)
            if full == name:
                entry["kind"] = described.get("kind", "")
                entry["parameters"] = described.get("parameters", {})
        for name, entry in found.items():
            if not entry["kind"] and self.catalogue.is_lost(name):
                entry["kind"] = "lost"
        listed = [found[name] for name in sorted(found) if found[name]["kind"]]
        if state:
            look = late("limpet.stores.channels.states").state_of
            for entry in listed:
                entry["state"] = {}
                with contextlib.suppress(NodeFailed):
                    entry["state"] = look(
                        self.pool, entry["name"], entry["kind"], entry["parameters"] or {}
                    )
        return listed

    def _text(self, key: bytes) -> str:
        """The full name of a region as text. Raises StoreCorrupt if it cannot be one."""
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise StoreCorrupt(
                f"{self.pool.url}: there is a region of a channel with the name {key!r}, which no "
                "channel can have; save what is left, and destroy the pool"
            ) from error

    def names(self) -> builtins.list[str]:
        """The names of the channels that have no parent."""
        return [entry["name"] for entry in self.list()]

    def _keys(self) -> builtins.list[bytes]:
        """The full names of all regions."""
        return builtins.list(self.catalogue) if self._has_memory() else []

    def _has_memory(self) -> bool:
        """Whether there is a catalogue of regions, which `catalogue` would make."""
        pool = self.pool
        return bool(pool.exclusively(lambda: pool.catalogue.find(CHANNELS.encode())))

    def remove(self, name: str) -> None:
        """Remove a channel, with its sub-channels and regions; KeyError if there is none.

        A process that uses it gets ChannelRemoved. If the channel was lost, all or in part, the
        rest is removed; then there can be a new one of its name.
        """
        if not _is_name(name):
            raise KeyError(name)
        found = self._has_memory() and self.catalogue.remove(name)
        for handle in [handle for handle in self.handles if handle[1] == name]:
            self.handles.pop(handle, None)
        if not found:
            raise KeyError(name)

    def clear(self, name: str) -> None:
        """Remove the rest of a channel that was removed; `name`: of it, or of a part."""
        self.catalogue.clear(_root(name))

    # ---- verbs on their way -----------------------------------------------------------------

    def issue(self) -> AckKey:
        """The key of the verbs that this thread has just issued, within an operation."""
        self._outstanding.add(threading.get_ident())
        self.issued = self.completed + 1
        return AckKey(self, {self.issued})

    def complete(self) -> None:
        """End the phase: all issued verbs are complete. In an operation."""
        self.pool.endpoint.wait()
        self.completed = self.issued
        self._outstanding.clear()

    def fence(self, scope: str = GLOBAL) -> None:
        """Order the verbs issued so far before later ones; `scope` as above."""
        if scope not in SCOPES:
            raise ParameterError(f"a fence's scope is one of {', '.join(SCOPES)}, not {scope!r}")
        own = threading.get_ident() in self._outstanding
        if (own and scope == THREAD) or (self._outstanding and scope == GLOBAL):
            self.wait_for(self.issued)

    def wait_for(self, phase: int) -> None:
        """Wait until a phase is complete."""
        if self.completed < phase:
            with self.pool.client:
                self.complete()
