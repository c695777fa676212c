"""A pool opened by one process: its segments mapped, its client slot taken, its mechanisms wired.

`PoolCore` is the pool without its stores; `limpet.stores.pool.Pool` adds them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from limpet.shm import ephemeral, growth, housekeeping, leaving, mending, report
from limpet.shm import uninterrupted as threads
from limpet.shm.alloc.allocator import Allocator
from limpet.shm.alloc.blocks import BlockTable
from limpet.shm.alloc.heap import Heap
from limpet.shm.audit import Audit
from limpet.shm.backends import node as nodes
from limpet.shm.backends.inventory import remove_leftovers, revive
from limpet.shm.backends.location import parse_url
from limpet.shm.backends.name import is_there, release
from limpet.shm.backends.numa import NumaNode
from limpet.shm.backends.segments import (
    canonical,
    complete_segments,
    create_segments,
    node_options,
    open_segments,
    unlink_quietly,
)
from limpet.shm.catalogue.directory import Directory
from limpet.shm.catalogue.regions import Regions
from limpet.shm.clients.client import Client
from limpet.shm.clients.epoch import EPOCH_MAX, Grace
from limpet.shm.clients.lasting import LastingPin, await_copies
from limpet.shm.clients.liveness import LifeLocks, is_locked, time_shift_s
from limpet.shm.clients.membership import Membership
from limpet.shm.clients.unique_ids import Clock
from limpet.shm.clients.writer_numbers import WriterNumbers
from limpet.shm.contents import Contents
from limpet.shm.descriptors import descriptors_needed
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.failing import fail
from limpet.shm.endpoint.inside import is_over
from limpet.shm.endpoint.layout import (
    CATALOGUE_ENTRY_SIZE,
    CONTROL_NODE,
    NODE_STATES,
    SLOTS_USED,
    NodeLayout,
    address,
    catalogue_address,
    catalogue_entries,
)
from limpet.shm.endpoint.pool_clock import agree
from limpet.shm.endpoint.states import generation_of, why_last
from limpet.shm.endpoint.words import REPLICAS_BITS
from limpet.shm.errors import (
    ClientError,
    CoherenceError,
    LimpetError,
    NodeFailed,
    ParameterError,
    PoolClosed,
    PoolCorrupt,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    ReentrantUse,
)
from limpet.shm.leaving import Leaving, alive, back, close_handle, vanished
from limpet.shm.mapped_nodes import MappedNodes
from limpet.shm.parameters import Latency, PoolParameters, latency_ns
from limpet.shm.recovery import recover_client, release_client
from limpet.shm.replacement import Replacement
from limpet.shm.replicas.view import View
from limpet.shm.times import LONGEST_S, NS, Seconds, seconds_of, units_of
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self, Unpack

    from limpet.shm.parameters import PoolOptions


log: Final = logging.getLogger("limpet")

OPEN_TIMEOUT_S: Final = 2.0
SUCCESSOR_S: Final = 20.0
"""How long a remote client waits for the successor of a control server."""
NO_STATE: Final = (1 << 64) - 1

_identity_lock = threading.Lock()


_handles: Final[weakref.WeakSet[PoolCore]] = weakref.WeakSet()
"""All of this process."""


def _forked() -> None:
    """In a forked child, which has its parent's handles, and may be in its parent's operation."""
    global _identity_lock
    _identity_lock = threading.Lock()
    for pool in list(_handles):
        if not pool.closed:
            pool.client.forked(NO_STATE)
            if not pool._is_inside():
                pool.endpoint.end()  # if a thread is inside, it is one that the child has not


os.register_at_fork(after_in_child=_forked)


class PoolCore:
    """The memory nodes and the control segment of a pool, and this process's place in it."""

    _leaves_at_exit = True
    endpoint_class: type[Endpoint] = Endpoint
    mapped_class: type[MappedNodes] = MappedNodes
    """The classes of `endpoint` and `mapped`. Fault injection derives from these and from this."""
    remote = False
    """Whether our client is remote (clients/lasting.py)."""

    def __init__(
        self,
        url: str,
        segments: list[nodes.MemoryNode],
        parameters: PoolParameters,
        uuid: bytes,
        *,
        latency: Latency = "local",
        options: nodes.NodeOptions | None = None,
        is_whole: bool = True,
    ) -> None:
        """Wire up mapped `segments`, the control segment last, and join. Closes them on failure.

        `is_whole`: as the control segment is not before `create_filled` has filled the pool.
        """
        self._is_whole = is_whole
        self.url = url
        self.parameters = parameters
        self.uuid = uuid
        self.latency = latency
        self.options = options or nodes.NodeOptions()
        self.handles: weakref.WeakSet[Any] = weakref.WeakSet()
        """The handles of stores; each one's `replaced` is called when a node has new memory."""
        location = parse_url(url)
        if parameters.away and location.endpoint_class is None:
            for segment in segments:
                segment.close()
            raise ParameterError(
                f"{url} has nodes on other hosts, so all its clients are those of servers: open "
                "net://HOST:PORT,HOST:PORT/NAME (docs/network.md)"
            )
        self.remote = self.remote or location.endpoint_class is not None
        self.endpoint = (location.endpoint_class or self.endpoint_class)()
        self.mapped = self.mapped_class(
            url, uuid, parameters, self.options, self.endpoint, segments, self.handles
        )
        self._adopted = os.getpid()
        self._locks: LifeLocks | None = None
        try:
            self._wire(latency_ns(latency))
            self._inspect()
            growth.require_local(self)
            growth.know_rings(self)
            self._join()
            growth.require_local(self)  # nodes may have been added before we were known as remote
        except BaseException:
            self._unmap()
            raise
        self._leave_when_done()
        _handles.add(self)

    def make_contents(self) -> Contents:
        """The memory layer's questions about stores; a pool with stores overrides it."""
        return Contents()

    def _inspect(self) -> None:
        """Refuse a control segment with impossible words, before anything is written."""
        used, epoch = self.endpoint.load(SLOTS_USED), self.grace.now()
        if used > self.parameters.clients or not 0 < epoch < EPOCH_MAX:
            raise PoolCorrupt(
                f"{self.url}: the control segment is damaged: {used} client slots used, "
                f"epoch {epoch}; destroy the pool"
            )
        for _ in self.membership.occupied():
            pass

    def _wire(self, latency_ns: int) -> None:
        parameters = self.parameters
        self.layout = NodeLayout.of(parameters)
        self.endpoint.latency_ns = latency_ns
        self.mapped.attach_all()
        self.endpoint.watch_states(NODE_STATES)
        if parameters.durable:
            mending.note_changes(self.endpoint, self.layout, parameters)
        self.heap = Heap(self.endpoint, self.layout, parameters.nodes)
        self.grace = Grace(self.endpoint)
        coherent_blocks = self.layout.block_count
        if not parameters.coherent:
            coherent = parameters.coherent_bytes
            coherent_blocks = max(0, coherent - self.layout.blocks) // self.layout.block_size
            if not coherent_blocks:
                raise CoherenceError(
                    f"{self.url}: the hardware-coherent range of a node ends at {coherent} bytes; "
                    f"tables take {self.layout.blocks}, and at least one block must lie in it"
                )
        self.blocks = BlockTable(self.endpoint, self.heap, coherent_blocks)
        # Its own client must not keep it alive: dropping the last handle leaves the pool.
        rejoin: list[Any] = [weakref.WeakMethod(self._rejoin)]
        self._own_rejoin = rejoin
        remotely_fenced = parameters.multi_host or self.remote
        self.client = Client(self.endpoint, self.heap, lambda: alive(rejoin[0])(), remotely_fenced)
        self.clock = Clock(self.client)
        self.membership = Membership(self.endpoint, self.client, parameters, self.url)
        self.numbers = WriterNumbers(self.client, self.grace, self.membership)
        self.client.resigned = self.membership.resigned
        self.client.await_copies = functools.partial(await_copies, self.membership)
        if self.remote:
            self.client.lasting = LastingPin(self.client, self.membership)
        control = self.mapped.segments[-1]
        if control.remote:
            self.membership.make_heart = parse_url(self.url).heart_class
            self.membership.heart = self.membership.make_heart()
            endpoint: Any = self.endpoint
            self.client.lasting.tell_loss = endpoint.tell_loss
        else:
            self._locks = self.membership.locks = LifeLocks(control.descriptor, control.address)
        self.view = View(self.client, self.grace, self.membership, parameters.nodes)
        self.allocator = Allocator(self.client, self.blocks, self.grace, self.membership)
        self.regions = Regions(
            self.blocks, self.grace, self.membership, parameters.nodes, self.allocator
        )
        self.catalogue = Directory(
            self.endpoint,
            catalogue_address(parameters.clients),
            catalogue_entries(parameters.memory),
            CATALOGUE_ENTRY_SIZE,
            f"{self.url}: catalogue",
            renames=True,
        )
        inside = (self.client, self.blocks, self.regions, self.grace)
        contents = self.contents = self.heap.contents = self.make_contents()
        self.view.reconcile = contents.reconcile

        def restore(slot: int, word: int) -> dict[str, int]:
            with contents.recovering():
                return recover_client(*inside, slot, word)

        self.membership.restore = restore
        is_stable = self.view.is_stable
        self.membership.release = lambda: release_client(*inside, is_stable)
        self.blocks.pages.backing = functools.partial(back, self.mapped.segments)
        self.mapped.replaced = self.allocator.replaced
        self.blocks.vanished = functools.partial(vanished, self.endpoint, self.mapped.segments)
        remap = weakref.WeakMethod(self._remap)
        self.view.remap = lambda: alive(remap)()
        self.client.wait_stable = self.view.wait_stable
        rings = weakref.WeakMethod(self._know_rings)
        # A handle that is gone has nothing on nodes that it does not know.
        self.client.know_nodes = lambda: (rings() or _nothing)()
        self._viewed = -1

    # ---- creating and opening ---------------------------------------------------------------

    @classmethod
    def create(
        cls,
        url: str,
        *,
        nodes: int | None = None,
        node_size: int | str | None = None,
        latency: Latency = "local",
        numa_node: NumaNode = None,
        prefault: bool = False,
        huge_pages: bool = False,
        mode: int = 0o600,
        group: int | str | None = None,
        overwrite: bool = False,
        **parameters: Unpack[PoolOptions],
    ) -> Self:
        """Create a pool and open it.

        `nodes`, `node_size` (bytes, or text such as "64MiB"), and the fields of `PoolParameters`,
        of which `lease_us` is given as `lease`, in seconds;
        `numa_node`, `prefault`, `huge_pages`, `mode`, `group` as in `NodeOptions`. `overwrite`:
        also on devices that hold other data (never over a pool). Raises PoolExists, DeviceNotEmpty,
        ParameterError, PoolPermission, CoherenceError; then nothing is left behind.
        """
        options = node_options(
            numa_node, prefault, huge_pages, mode=mode, group=group, overwrite=overwrite
        )
        latency_ns(latency)
        if dict(parameters).get("away"):
            raise ParameterError(
                f"{url}: a pool with nodes on other hosts is made by limpet.create_apart, or "
                "`limpet create --away`, and opened once they are there, by net://"
            )

        def segments() -> Any:
            return create_segments(url, nodes, node_size, options, {**parameters})

        def make() -> Any:
            made, uuid, checked = ephemeral.in_place_of(parse_url(canonical(url)), segments)
            try:
                pool = cls(canonical(url), made, checked, uuid, latency=latency, options=options)
                # ORDER: only now, if it is ephemeral: without a client it would be removed.
                release(made[-1].fd)
                return pool
            except BaseException:
                unlink_quietly(url, uuid)
                raise

        def unmake(pool: Any) -> None:
            pool.close()
            unlink_quietly(url, pool.uuid)

        return uninterrupted(make, unmake)  # type: ignore[no-any-return]

    @classmethod
    def create_filled(
        cls,
        url: str,
        fill: Callable[[Self], Any],
        *,
        nodes: int | None = None,
        node_size: int | str | None = None,
        mode: int = 0o600,
        group: int | str | None = None,
        numa_node: NumaNode = None,
        prefault: bool = False,
        huge_pages: bool = False,
        **parameters: Unpack[PoolOptions],
    ) -> tuple[Self, Any]:
        """A new pool that no other process can open before `fill` has returned; and its result.

        If the process is killed before, the pool is a half-created one, as that of a killed
        creator: the next creator of the name, or `prune`, removes it. After an exception it is
        gone. Parameters and errors as of `create`.
        """
        options = node_options(numa_node, prefault, huge_pages, mode=mode, group=group)
        location = parse_url(canonical(url))

        def segments() -> Any:
            return create_segments(url, nodes, node_size, options, {**parameters}, False)

        def make() -> Any:
            made, uuid, checked = ephemeral.in_place_of(location, segments)
            try:
                return cls(location.url, made, checked, uuid, options=options, is_whole=False)
            except BaseException:
                remove_leftovers(location)  # its segments are closed, and the name is free
                raise

        def unmake(pool: Any) -> None:
            pool.close()
            # If another creator has the name by now, it holds it.
            remove_leftovers(location)

        def complete() -> None:
            # A kill here: a half-created pool, though nothing is lacking.
            complete_segments(pool.mapped.segments[-1], pool.parameters, pool.uuid)
            pool._is_whole = True

        pool = uninterrupted(make, unmake)
        try:
            found = fill(pool)
            uninterrupted(complete)
        except BaseException:
            uninterrupted(lambda: unmake(pool))
            raise
        return pool, found

    @classmethod
    def open(
        cls,
        url: str,
        *,
        latency: Latency = "local",
        any_owner: bool = False,
        numa_node: NumaNode = None,
        prefault: bool = False,
        huge_pages: bool = False,
        timeout_s: Seconds = OPEN_TIMEOUT_S,
        create: bool = False,
        nodes: int | None = None,
        node_size: int | str | None = None,
        mode: int = 0o600,
        group: int | str | None = None,
        **parameters: Unpack[PoolOptions],
    ) -> Self:
        """Open a pool that is there; wait up to `timeout_s` for its creator to finish.

        With `create`, a pool that is not there is made first: of several processes, one makes it
        and the others open it. `nodes`, `node_size`, `mode`, `group` and the fields of
        `PoolParameters` are those of a pool that is made; one that is there stays as it is.

        Raises PoolNotFound, PoolForeign, PoolPermission (another user's, unless `any_owner`),
        PoolVersion, PoolCorrupt, PoolIncomplete or PoolTruncated without having written to it; with
        `create`, what `create` raises; PoolExists only if after `timeout_s` something else than a
        pool still has the name. ParameterError: there is a parameter of a new pool, but not
        `create`.
        """
        making = {"nodes": nodes, "node_size": node_size, "group": group, **parameters}
        given = sorted(name for name, value in making.items() if value is not None)
        if given and not create:
            raise ParameterError(
                f"{', '.join(given)}: a pool that is there stays as it is; open(..., create=True) "
                "makes one that is not"
            )
        latency_ns(latency)
        options = node_options(numa_node, prefault, huge_pages, any_owner)
        deadline = time.monotonic() + seconds_of("timeout_s", timeout_s)

        def attach() -> Any:
            opened, parameters, uuid = open_segments(url, options)
            if parameters.ephemeral and not is_locked(opened[-1].fd, parameters.clients):
                for segment in opened:
                    segment.close()
                if ephemeral.remove(parse_url(canonical(url)), uuid):
                    raise ephemeral.over(canonical(url))
                opened, parameters, uuid = open_segments(url, options)
            return cls(canonical(url), opened, parameters, uuid, latency=latency, options=options)

        def clear() -> bool:
            return remove_leftovers(parse_url(canonical(url)))

        def mend() -> bool:
            return revive(parse_url(canonical(url)))

        while True:
            late = time.monotonic() >= deadline
            try:
                return uninterrupted(attach, cls.close)  # type: ignore[no-any-return]
            except PoolIncomplete:
                cleared = uninterrupted(clear if create else mend)
                if late and not cleared:
                    raise
            except PoolNotFound:
                if not create:
                    raise
                try:
                    return cls.create(
                        url,
                        nodes=nodes,
                        node_size=node_size,
                        latency=latency,
                        numa_node=numa_node,
                        prefault=prefault,
                        huge_pages=huge_pages,
                        mode=mode,
                        group=group,
                        **parameters,
                    )
                except PoolExists:  # another process was faster, or something is in the way
                    if late:
                        raise
            time.sleep(0.01)

    # ---- identity ---------------------------------------------------------------------------

    def _join(self, forked: bool = False) -> None:
        if self.mapped.segments[-1].remote:
            # A host of its own: other hosts' clients judge it by its lease, and never by its pid.
            self.membership.host_name = f"net{os.getpid()}-{secrets.token_hex(8)}"
        if self.parameters.durable:
            mending.join(self, forked)
        else:
            self.membership.join()
        self._require_there()

    def _require_there(self) -> None:
        """Leave, and raise PoolNotFound, if the memory is another pool's by now (destroying.py), or
        the pool went away with its last client (ephemeral.py)."""
        location, control = parse_url(self.url), self.mapped.segments[-1]
        if self.parameters.ephemeral:
            try:
                ephemeral.require_there(self.url, control, self.uuid)
            except PoolNotFound:
                self.membership.depart()
                raise
        whole = self._is_whole
        if whole and location.reuses_memory and not is_there(location, control.fd, self.uuid):
            self.membership.depart()
            raise PoolNotFound(f"{self.url} was destroyed; its memory is another pool's by now")
        if not self.parameters.multi_host:
            agree(self.endpoint, self.membership.here.boot, time_shift_s())

    def _rejoin(self) -> None:
        """Join as a new client; called in a forked child before its first operation, of a handle
        that has no client, and of a remote one that has lost the control server: then it waits for
        a successor. PoolClosed: it was closed."""
        if self.closed and self._adopted == os.getpid():
            raise PoolClosed(f"{self.url}: this handle was closed; open the pool again")
        if self._adopted != os.getpid() and self._is_inside():
            raise ReentrantUse(
                f"{self.url}: this process was forked in the midst of an operation of its parent, "
                "and has not left it yet"
            )
        deadline = time.monotonic() + SUCCESSOR_S
        while True:
            try:
                with descriptors_needed(self.url):
                    uninterrupted(self._rejoin_once)
                return
            except LimpetError as error:
                if not self._is_over() or isinstance(error, PoolForeign):
                    raise
                if time.monotonic() >= deadline or threads.ending:
                    raise NodeFailed(
                        CONTROL_NODE, f"no server has taken it over: {error}"
                    ) from error
            time.sleep(0.1)

    def _is_over(self) -> bool:
        """Whether our client has lost the control server, and may find another one."""
        endpoint: Any = self.endpoint
        return self.mapped.segments[-1].remote and bool(endpoint.over)

    def _is_inside(self) -> bool:
        """In a forked child: whether its thread is in an operation that its parent has begun."""
        endpoint = self.endpoint
        if endpoint.begin_idle():
            endpoint.end()
            return False
        frame = endpoint.frame
        return endpoint.begin_last() and not (frame and is_over(threading.get_ident(), frame))

    def _rejoin_once(self) -> None:
        with _identity_lock:
            over = self._is_over()
            if self._adopted == os.getpid() and not over:
                # Another thread was first, and may be inside an operation by now; or this is an
                # operation of an exit handler, or a destructor, after ours.
                if threads.ending and not self.client.ident:
                    self._join()
                return
            if not self._finalizer.alive:
                self.client.assume(0, 0, 0)
            elif over or self._pid != os.getpid():
                if over:
                    # ORDER: the thread of the lease does not see half of the connections.
                    self.membership.heart.stop()
                    self.membership.heart.join()
                    remote: Any = self.endpoint
                    remote.follow()
                self.endpoint.guard(0, 0)
                self.membership.forked()
                self.allocator.forget()
                self.clock.forget()
                self.numbers.forget()
                self.client.assume(0, 0, 0)
                # Without a free slot this raises, and the next operation tries again.
                self._join(forked=True)
                self._finalizer.detach()
                self._leave_when_done()
            self.endpoint.adopted()
            self._adopted = os.getpid()

    def _leave_when_done(self) -> None:
        """Leave the pool when this handle is closed or forgotten, or this process ends."""
        self._pid = os.getpid()
        self._leaving = Leaving()
        if self.parameters.ephemeral:
            self._leaving.remove = functools.partial(
                ephemeral.remove, parse_url(self.url), self.uuid
            )
        inside = (self.client, self.membership, self.endpoint, self.mapped.segments, self._pid)
        self._finalizer = weakref.finalize(self, close_handle, *inside, self._leaving)
        self._finalizer.atexit = False
        leaving.depart_at_exit(self)

    def stay_to_the_end(self) -> None:
        """Leave the pool when the handle is closed or forgotten, but not while Python ends: the
        process may still use memory that this client keeps."""
        self._leaves_at_exit = False

    def depart_at_exit(self) -> None:
        """Give up this client, unless a thread of it is inside, or the program still has values in
        place; the next operation joins again.

        A client whose journal names an unfinished change is left to others, as after a kill: to
        settle it may have to wait for another client of this process, which makes no step.
        """
        if (
            self._leaves_at_exit
            and not self.closed
            and self._pid == os.getpid()
            and not self.client.holds.count
            and not self.client.held
            and self.endpoint.begin_last()
        ):
            leaving.depart(self.client, self.membership, self.endpoint)
            # Its blocks are others' by now: the next client of this handle has none of them.
            self.allocator.forget()
            self.clock.forget()
            self.numbers.forget()
            self._leaving.over()
            # A destructor that the garbage collector calls finds no weak reference to us.
            self._own_rejoin[0] = lambda: self._rejoin

    @property
    def client_id(self) -> int:
        """This process's client id in the pool (it may take one for that)."""
        return int(self.exclusively(lambda: self.membership.ident))

    def close(self) -> None:
        """Leave the pool: give back what this client has, and unmap. May be called twice.

        Handles of its stores raise PoolClosed from now on. Raises ReentrantUse, and changes
        nothing, from inside an operation of the same thread.
        """
        self.client.rest()
        self._leaving.waits = True
        uninterrupted(self._finalizer)
        if self._pid == os.getpid():
            # At exit, `weakref` no longer calls finalizers.
            self.membership.heart.stop()
            self.membership.heart.join()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def segments(self) -> list[nodes.MemoryNode]:
        """The mapped memory nodes, and last the control segment."""
        return self.mapped.segments

    def _unmap(self) -> None:
        self.endpoint.detach()
        for segment in self.mapped.segments:
            segment.close()
        if self._locks is not None:
            self.membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the pool. An exception of the block goes on, also if the pool cannot be closed,
        because the block's frame still has arrays of views: it stays open."""
        try:
            self.close()
        except ClientError as reason:
            if error is None:
                raise
            log.warning("%s; it stays open", reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self.url, self.uuid, self.latency, self.options.any_owner)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<{type(self).__name__} {self.url}{state}>"

    # ---- operation of the pool ----------------------------------------------------------------

    @property
    def is_in_place(self) -> bool:
        """Whether stores may look at memory where it is: without a pin, or between operations. It
        has to be mapped, and hardware-coherent."""
        return self.parameters.coherent and not self.remote

    def exclusively(self, work: Callable[[], Any]) -> Any:
        """Do `work`, which may pin, while the other threads of this process wait."""

        def up_to_date() -> Any:
            self.keep_up()
            return work()

        return self.client.exclusively(up_to_date)

    def keep_up(self) -> None:
        """If nodes were replaced since, map their new memory. While other threads are kept out.
        Raises NodeFailed when it cannot be."""
        viewed = self.view.number()
        if viewed != self._viewed:
            self._remap()
            self._viewed = viewed

    def _remap(self) -> None:
        """Map the nodes that were added, and the new memory of those that were replaced. Raises
        NodeFailed when it cannot be."""
        growth.know_rings(self)
        self.mapped.renew(self.view)

    def _know_rings(self) -> None:
        growth.know_rings(self)

    def add_node(self, size: int | str | None = None, count: int = 1) -> dict[str, Any]:
        """Give the pool more memory nodes, while clients use it.

        `count` nodes are added together, as a ring. Objects with r replicas use rings of r nodes or
        more: a store with two replicas has no use for what `count=1` adds, and is as full as
        before. `size` is how many bytes each of the `count` is to have (or text such as "1GiB"): as
        all nodes of a pool are of one size, so many rings are added that it is reached. None: one
        ring.

        From then on, stores take memory there for what does not fit where it belongs; nothing that
        is there moves. Operations on replicated stores wait for those that had begun before; a
        client that stands still in one is fenced as always. Returns the numbers of the new
        `nodes`, `bytes` of them, `took_ns`.

        Raises ParameterError when nodes cannot be added (device DAX, durable pools, pools with
        remote clients), or there is no room for them. Then rings that were complete stay.
        """
        return self.exclusively(lambda: self._add_node(size, count))  # type: ignore[no-any-return]

    def _add_node(self, size: int | str | None, count: int) -> dict[str, Any]:
        began_ns = time.monotonic_ns()
        rings = growth.Growth.rings_for(self, size, count)
        added: list[int] = []
        for _ in range(rings):
            added += growth.Growth(self, count).run()
        return {
            "nodes": added,
            "bytes": len(added) * self.parameters.node_size,
            "took_ns": time.monotonic_ns() - began_ns,
        }

    def replace_node(self, node: int) -> dict[str, Any]:
        """Give a memory node that is lost new memory, and fill it from the nodes that are left.

        Afterwards every object with replicas, and every replicated index, has as many replicas as
        before. Data that only the lost node had is gone, and its stores go on raising NodeFailed
        for it. Operations on replicated stores wait until the node is filled; a client that keeps
        them waiting is fenced as always. Returns the counts: `node`, `generation` of its memory,
        `objects`, `blocks`, `regions` and `bytes` copied, `took_ns`.

        Raises ParameterError when the node is in service or another process uses the device (dax),
        or there is no room for new memory; StoreFull when the node's data does not fit any more;
        NodeFailed when the new memory is lost, too, or more was lost than a store survives. Then
        the node is as it was, and no further data is lost.
        """
        self._check_node(node)
        if self.parameters.durable:
            raise ParameterError(
                f"{self.url} is durable: its nodes are not replaced; save what is there, and make "
                "another pool"
            )
        return self.exclusively(lambda: self._replace_node(node))  # type: ignore[no-any-return]

    def _replace_node(self, node: int) -> dict[str, Any]:
        done = Replacement(self, node).run()
        if self.view.nodes > self.parameters.nodes:
            # Objects on other nodes that only the lost node linked to.
            self.free_unreachable()
        return done

    def recover(self) -> dict[str, Any]:
        """Recover every dead client now, and clean up after dead creators of regions.

        Returns `clients`, the ids of those recovered by this call (other clients may have recovered
        some before: `events` has all), how many `objects` and `blocks` were given back, and how
        many `stores` were dropped that a dead client was dropping.
        """
        return self.exclusively(self._recover)  # type: ignore[no-any-return]

    def _recover(self) -> dict[str, Any]:
        return housekeeping.recover(self)

    def watch(
        self,
        interval_s: Seconds = housekeeping.WATCH_INTERVAL_S,
        fence_command: Sequence[str] = (),
        *,
        until_destroyed: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Notice dead clients within `interval_s` and recover them; yields each recovery.

        Goes on until the pool is destroyed; that raises PoolNotFound within a second. Without
        `until_destroyed` it goes on then, too, for the processes that have the pool mapped.
        `fence_command`: how to switch off a host whose lease is over, in a pool with
        `fence="command"`; it is called with name, machine and boot of the host (docs/hosts.md).
        """
        pause_s = units_of("interval_s", interval_s, NS, LONGEST_S * NS) / NS
        return housekeeping.watch(self, pause_s, fence_command, until_destroyed)

    def idents(self) -> set[int]:
        """The ids of this handle's clients."""
        return {self.membership.ident}

    def clients(self) -> list[dict[str, Any]]:
        """The clients of the pool: id, slot, pid, host, state, pinned, blocks, ours."""
        return self.exclusively(lambda: report.clients(self))  # type: ignore[no-any-return]

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts that have clients in the pool: names, clients, leases and clocks.

        `renewed_s`: how long ago the youngest lease was renewed; None if that was not seen within
        half a lease, which this call takes. `clock_s`: by how much the host's wall clock is ahead
        of this one's.
        """
        return report.hosts(self, self.exclusively)

    def whole_since(self) -> str:
        """In words, since when a durable pool is whole; empty if the pool is not durable."""
        if not self.parameters.durable:
            return ""
        return self.exclusively(lambda: mending.whole_since(self))  # type: ignore[no-any-return]

    def fail_node(self, node: int) -> None:
        """Mark a memory node failed: every verb of every client on it raises NodeFailed.

        Until it is replaced: `replace_node`. Raises ParameterError, and marks nothing, for the last
        node in service, unless its memory is lost: a node is filled from those that are left.
        """
        self._check_node(node)
        nodes, endpoint = self.view.nodes, self.endpoint
        mark, refuse = self.membership.fail_node, functools.partial(self._refuse_last, node)
        # Not through our own `exclusively`: it must work for memory that we cannot map, too.
        self.client.exclusively(
            lambda: fail(node, nodes, endpoint.load, endpoint.cas, mark, refuse)
        )

    def mark_failed(self, node: int) -> None:
        """`fail_node` for a node that counts as lost, also the last one: for fault injection."""
        self.client.exclusively(
            lambda: self.membership.fail_node(node, generation_of(self.view.word(node)))
        )

    def _refuse_last(self, node: int, states: list[int]) -> None:
        """Raise ParameterError for the last node in service, if its memory is there."""
        if self._has(node):
            raise ParameterError(why_last(self.url, node, states))

    def _has(self, node: int) -> bool:
        """Whether the memory of a node is there. It may be newer than what is mapped."""
        with contextlib.suppress(NodeFailed):  # perhaps of another node: the load says
            self._remap()
        try:
            self.endpoint.load(address(node, 0))
        except NodeFailed:
            return False
        return True

    def _check_node(self, node: int) -> None:
        if isinstance(node, bool) or not isinstance(node, int):
            raise ParameterError(f"a node is named by its number, not {node!r}")
        if node >= self.view.nodes:
            self.client.exclusively(self._know_rings)
        if not 0 <= node < self.view.nodes:
            raise ParameterError(f"{self.url} has nodes 0 to {self.view.nodes - 1}, no node {node}")

    def nodes(self) -> list[dict[str, Any]]:
        """The memory nodes: number, segment, size in bytes, state, generation of the memory.

        State: "in service", "failed" (marked, for all), "lost" (to this process), "being replaced",
        "to be read only" (this process has met poisoned pages of it).
        """
        return self.exclusively(lambda: report.nodes(self))  # type: ignore[no-any-return]

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        """The last events: clients recovered or fenced, nodes failed; oldest first.

        `since`: only those from that number on. `time_ns` is the wall clock's; `took_ns` passed
        between noticing a death and having repaired everything, or between the last look at a
        client that was fenced and its end.
        """
        return self.exclusively(lambda: self.membership.events(since))  # type: ignore[no-any-return]

    def audit(self) -> dict[str, int]:
        """Where every byte of the memory nodes is: see `limpet.shm.audit`."""
        return self.exclusively(self._auditor().run)  # type: ignore[no-any-return]

    def _auditor(self) -> Audit:
        inside = (self.blocks, self.regions, self.grace, self.membership, self.client)
        return Audit(*inside, self.contents)

    def strays(self) -> list[int]:
        """Called by the leader: references to objects with replicas that no client can find
        again."""
        return [found for found in self._auditor().strays() if found & REPLICAS_BITS]

    def free_unreachable(self) -> int:
        """Free the objects that no store links to and no client has in its journal; how many.

        Such objects remain when a client dies while it drops a store. Within `exclusively`.
        """
        return self._auditor().free_unreachable()


def _nothing() -> None:
    """Do nothing: the pool's handle is gone."""


_reopened_pools: weakref.WeakValueDictionary[tuple[type, str, bytes], PoolCore] = (
    weakref.WeakValueDictionary()
)


def _reopened(
    kind: type[PoolCore], url: str, uuid: bytes, latency: Latency, any_owner: bool
) -> PoolCore:
    """Unpickle a pool: all handles that come to a process this way share one client slot."""
    with _identity_lock:
        pool = _reopened_pools.get((kind, url, uuid))
    if pool is None or pool.closed:
        pool = kind.open(url, latency=latency, any_owner=any_owner)
        if pool.uuid != uuid:
            pool.close()
            raise PoolNotFound(f"{url} was destroyed, and another pool of that name created")
        with _identity_lock:
            _reopened_pools[kind, url, uuid] = pool
    return pool
