"""The segments of a pool, one a memory node and the control segment: made, opened, destroyed.

The control segment is made first and finished last, so a pool that can be opened has all its nodes,
but for those that are marked as failed since (`fail_node`).
`destroy` removes the remains of a pool whose creator was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid as uuids
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.backends import node as nodes
from limpet.shm.backends.inventory import remove_leftovers, remove_stray_nodes
from limpet.shm.backends.name import is_there, release, take_back
from limpet.shm.backends.numa import NumaNode
from limpet.shm.backends.probe import nodes_in
from limpet.shm.backends.superblock import Superblock
from limpet.shm.clients import events
from limpet.shm.clients.hosts import given_name
from limpet.shm.clients.liveness import this_host
from limpet.shm.clients.membership import log
from limpet.shm.endpoint.fabric import Endpoint, buffer_cas, buffer_load
from limpet.shm.endpoint.failing import fail
from limpet.shm.endpoint.layout import (
    CONTROL_NODE,
    EPOCH,
    LEDGER,
    NODE_STATES,
    PAGE,
    POWER,
    SUPERBLOCK_SIZE,
    NodeLayout,
    address,
    control_size,
)
from limpet.shm.endpoint.states import (
    BRING_BACK,
    FAILED,
    IN_SERVICE,
    generation_of,
    node_word,
    state_of,
    why_last,
)
from limpet.shm.errors import (
    LimpetError,
    ParameterError,
    PoolCorrupt,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolPermission,
    PoolTruncated,
)
from limpet.shm.parameters import (
    NODE_SIZE_MAX,
    NODES_MAX,
    PoolParameters,
    check_whole,
    lease_us_of,
    parse_size,
)
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from limpet.shm.parameters import PoolOptions

CLAIMS_MAX: Final = 100
OPTIONS: Final = (
    "latency", "numa_node", "prefault", "huge_pages", "mode", "group", "overwrite",
)  # fmt: skip
"""`limpet.create` takes these besides the fields of PoolParameters."""


def canonical(url: str) -> str:
    return nodes.parse_url(nodes.full_url(url)).url


def node_options(
    numa_node: NumaNode,
    prefault: bool,
    huge_pages: bool,
    any_owner: bool = False,
    mode: int = 0o600,
    group: int | str | None = None,
    overwrite: bool = False,
) -> nodes.NodeOptions:
    return nodes.NodeOptions(
        numa_node=numa_node,
        prefault=prefault,
        huge_pages=huge_pages,
        any_owner=any_owner,
        mode=mode,
        group=group,
        overwrite=overwrite,
    )


def create_segments(
    url: str,
    count: int | None,
    node_size: int | str | None,
    options: nodes.NodeOptions,
    given: dict[str, Any],
    complete: bool = True,
) -> tuple[list[nodes.MemoryNode], bytes, PoolParameters]:
    """Make the segments of a pool, those of its memory nodes first; its uuid and parameters.

    The name of an ephemeral pool is held until the caller is a client and releases it. Unless
    `complete`, so is that of another one, and its control segment has no superblock yet: for
    `complete_segments`, or `discard_segments`.
    """
    location = nodes.parse_url(nodes.full_url(url))
    known = {*PoolParameters.__dataclass_fields__, "lease"} - {"lease_us"}
    if unknown := set(given) - known:
        raise ParameterError(
            f"a pool has no parameter {', '.join(sorted(unknown))}; "
            f"it has {', '.join(sorted(known | set(OPTIONS)))}"
        )
    size = None if node_size is None else parse_size(node_size)
    if size is not None and size > PAGE and isinstance(node_size, str):
        size -= size % PAGE  # "1GB" is not a whole number of pages
    for name in ("block_size", "coherent_bytes"):
        if name in given:
            given[name] = parse_size(given[name])
    if "lease" in given:
        given["lease_us"] = lease_us_of(given.pop("lease"))
    if given.get("ephemeral") and location.reuses_memory:
        raise ParameterError(
            f"{location}: a pool on a device stays until it is destroyed; ephemeral=True is for "
            "pools in shared memory and in files"
        )
    if given.get("away"):
        if location.reuses_memory:
            raise ParameterError(f"{location}: nodes on other hosts are for shm:// and file://")
        given.setdefault("multi_host", True)
    if location.several_hosts:
        # Without it a client of another host counts as one from before a reboot, and as dead.
        # A durable pool is of one host unless it is said otherwise.
        given.setdefault("multi_host", not given.get("durable"))
    # The nodes are not planned yet: of the largest ones, everything else is checked.
    draft = PoolParameters(node_size=NODE_SIZE_MAX, **{**given, "away": 0})
    plan = nodes.plan(
        location,
        nodes=count,
        node_size=size,
        control_size=functools.partial(control_size, draft.clients),
    )
    parameters = PoolParameters(nodes=plan.nodes, node_size=plan.node_size, **given)
    uuid = uuids.uuid4().bytes
    layout = NodeLayout.of(parameters)
    whole = plan.control_size + plan.nodes * plan.node_size
    # Room is looked at before the pool takes some.
    warnings = nodes.warn_if_larger(location, whole), location.warning()
    made: list[nodes.MemoryNode] = []
    folders = location.missing_folders()
    try:
        options = dataclasses.replace(options, durable=parameters.durable)
        control = _claim(location, plan.control_size, options)
        made.append(control)
        remove_stray_nodes(location)
        for index in range(parameters.here):
            made.append(_create(location, index, parameters.node_size, options))
        for segment in (*made[1:], control):
            if not control.place.same(control.fd):
                raise PoolNotFound(f"{location}: its control segment was taken away meanwhile")
            _format(segment, layout, parameters, uuid, complete or segment is not control)
        if complete and not parameters.ephemeral:
            release(control.fd)
    except BaseException:
        discard_segments(location, made)
        for folder in folders:
            with contextlib.suppress(OSError):  # it was not made, or another process uses it
                folder.rmdir()
        raise
    for warning in filter(None, warnings):
        log.warning("%s: %s", location, warning)
    return [*made[1:], control], uuid, parameters


def create_apart(
    url: str,
    away: int,
    *,
    nodes: int | None = None,
    node_size: int | str | None = None,
    numa_node: NumaNode = None,
    prefault: bool = False,
    huge_pages: bool = False,
    mode: int = 0o600,
    group: int | str | None = None,
    overwrite: bool = False,
    **parameters: Unpack[PoolOptions],
) -> PoolParameters:
    """Make a pool whose last `away` nodes will be memory of other hosts: what is to be on this one,
    for `limpet serve` (docs/network.md). No pool is opened: its clients open a net:// URL.

    Other arguments, and errors, as of `limpet.create`. Returns the pool's parameters.
    """
    check_whole("away", away, 1, NODES_MAX)
    options = node_options(
        numa_node, prefault, huge_pages, mode=mode, group=group, overwrite=overwrite
    )
    given = {**parameters, "away": away}

    def make() -> PoolParameters:
        made, _, parameters = create_segments(url, nodes, node_size, options, given)
        for segment in made:
            segment.close()
        return parameters

    return uninterrupted(make)


def complete_segments(control: nodes.MemoryNode, parameters: PoolParameters, uuid: bytes) -> None:
    """Make a pool whole whose control segment was not to be `complete`."""
    nodes.finish(control, parameters, uuid)
    if parameters.durable:
        control.place.persist(control.map, SUPERBLOCK_SIZE)
    release(control.fd)


def discard_segments(location: nodes.Location, made: list[nodes.MemoryNode]) -> None:
    """Remove segments that were made for a pool whose name is held, the control segment first of
    them; that is removed last."""
    if made:
        take_back(location, made[0].fd)
    for segment in reversed(made):
        nodes.discard(segment)


def _claim(location: nodes.Location, size: int, options: nodes.NodeOptions) -> nodes.MemoryNode:
    """The control segment of a new pool, which holds the name. Removes first what a killed creator
    or destroyer has left."""
    for _ in range(CLAIMS_MAX):
        try:
            return _create(location, CONTROL_NODE, size, options)
        except PoolExists:
            if not remove_leftovers(location):
                raise
        except PoolNotFound:
            pass  # a creator that failed has just removed the folder that it had made
    raise PoolExists(f"{location}: other processes begin to make it again and again, and fail")


def _create(
    location: nodes.Location, index: int, size: int, options: nodes.NodeOptions
) -> nodes.MemoryNode:
    """A new segment. PoolExists says whether what is there already is a segment of limpet's."""
    try:
        return nodes.create(location, index, size, options=options)
    except PoolExists as error:
        try:
            nodes.open_(location, index, options=options)[0].close()
        except PoolPermission:
            raise error from None
        except PoolForeign as foreign:
            raise PoolExists(
                f"{foreign}: it is not a pool's, so limpet neither opens nor destroys it; remove "
                "it yourself, or take another name for the pool"
            ) from error
        except LimpetError:
            raise error from None
        raise


def _format(
    segment: nodes.MemoryNode,
    layout: NodeLayout,
    parameters: PoolParameters,
    uuid: bytes,
    complete: bool,
) -> None:
    if segment.stat_size() < segment.size:
        raise PoolTruncated(f"{segment.name} was truncated while it was made")
    control = segment.index == CONTROL_NODE
    used = segment.size if control else layout.blocks
    nodes.back(segment, used)
    if not segment.zeroed:
        for start in range(4096, used, 1 << 20):
            end = min(start + (1 << 20), used)
            segment.map[start:end] = bytes(end - start)
    if control:
        epoch = EPOCH - address(CONTROL_NODE, 0)
        segment.map[epoch : epoch + 8] = (1).to_bytes(8, "little")
    if parameters.durable:
        if control:
            power = POWER - address(CONTROL_NODE, 0)
            segment.map[power : power + 8] = _boot(parameters).to_bytes(8, "little")
        # ORDER: contents persist before the superblock that declares them whole.
        segment.place.persist(segment.map, used)
    if complete:
        nodes.finish(segment, parameters, uuid)
        if parameters.durable:
            segment.place.persist(segment.map, SUPERBLOCK_SIZE)


def _boot(parameters: PoolParameters) -> int:
    return this_host(given_name() if parameters.multi_host else "").boot


def open_segments(
    url: str, options: nodes.NodeOptions
) -> tuple[list[nodes.MemoryNode], PoolParameters, bytes]:
    """The segments of a pool that is there, without those of nodes out of service."""
    location = nodes.parse_url(nodes.full_url(url))
    if location.endpoint_class is not None:
        return location.open_remote()
    control, block = _open_control(location, options)
    opened = [control]
    gone = f"{location} was destroyed while it was being opened"
    try:
        parameters = block.parameters
        if control.size < control_size(parameters.clients, parameters.memory):
            raise PoolCorrupt(f"{control.name}: too small for {parameters.clients} clients")
        if any(control.place.read(control.fd, 8, LEDGER - address(CONTROL_NODE, 0))):
            raise ParameterError(
                f"{location} has memory nodes of a pool whose control segment is on another host: "
                "`limpet serve --control` serves them, and clients open net://"
            )
        count = parameters.here if parameters.away else _nodes(control, parameters)
        for index in range(count):
            word = _word(control, index)
            if state_of(word) != IN_SERVICE:
                continue  # marked failed: its present memory does not matter
            try:
                segment, found = nodes.open_(
                    location,
                    index,
                    uuid=block.uuid,
                    size=parameters.node_size,
                    options=options,
                    generation=generation_of(word),
                )
            except PoolNotFound as error:
                raise PoolIncomplete(_if_lost(url, index, f"{url}: {error}")) from error
            except PoolIncomplete as error:
                why = (
                    f"{location.segment(index)} has no superblock, though its pool was complete: "
                    "it was cut off, or the pool is being destroyed"
                )
                if isinstance(error.__cause__, OSError):  # its device does not answer
                    why = str(error).removesuffix(f"; {BRING_BACK}")
                raise PoolIncomplete(_if_lost(url, index, why)) from error
            except (PoolTruncated, PoolCorrupt) as error:
                why = str(error).removesuffix("; destroy the pool")
                raise type(error)(_if_lost(url, index, why)) from error
            opened.append(segment)
            if found.parameters != parameters:
                raise PoolCorrupt(f"{segment.name}: its parameters differ from the pool's")
        if not is_there(location, control.fd, block.uuid):
            raise PoolIncomplete(gone)
    except LimpetError as error:
        there = is_there(location, control.fd, block.uuid)
        for segment in opened:
            segment.close()
        if there:
            raise
        raise PoolIncomplete(gone) from error
    except BaseException:
        for segment in opened:
            segment.close()
        raise
    return [*opened[1:], control], parameters, block.uuid


def _open_control(
    location: nodes.Location, options: nodes.NodeOptions
) -> tuple[nodes.MemoryNode, Superblock]:
    try:
        return nodes.open_(location, CONTROL_NODE, options=options)
    except PoolNotFound as error:
        raise PoolNotFound(
            f"{location}: there is no such pool ({error}); `limpet ls` lists the pools in shared "
            "memory, and limpet.create makes one"
        ) from error


def _if_lost(url: str, node: int, why: str) -> str:
    """The message for a pool of which a memory node cannot be used."""
    return (
        f"{why}. If the memory node is away, {BRING_BACK}. If it is lost, `limpet fail-node "
        f"{url} {node}` marks it as failed; then the pool opens without it, and stores with "
        "replicas go on"
    )


def _state_at(node: int) -> int:
    """The offset of a node's state word in the control segment."""
    return NODE_STATES - address(CONTROL_NODE, 0) + 8 * node


def _nodes(control: nodes.MemoryNode, parameters: PoolParameters) -> int:
    """How many nodes the pool has now."""
    return nodes_in(control.place, control.fd, parameters.nodes)


def _word(control: nodes.MemoryNode, node: int) -> int:
    """A node's state word."""
    data = control.place.read(control.fd, 8, _state_at(node))
    if len(data) < 8:
        raise PoolTruncated(f"{control.name} was truncated while it was being opened")
    return int.from_bytes(data, "little")


def _is_there(
    location: nodes.Location,
    node: int,
    control: nodes.MemoryNode,
    block: Superblock,
    options: nodes.NodeOptions,
) -> bool:
    """Whether the memory of a node can be opened."""
    try:
        segment, _ = nodes.open_(
            location,
            node,
            uuid=block.uuid,
            size=block.parameters.node_size,
            options=options,
            generation=generation_of(_word(control, node)),
        )
    except (PoolNotFound, PoolIncomplete, PoolTruncated, PoolCorrupt):
        return False
    segment.close()
    return True


def fail_node(url: str, node: int, *, any_owner: bool = False) -> bool:
    """Mark a memory node as failed through the control segment alone; False if it was already.

    For a pool that cannot be opened any more because the node is missing. Clients that have it open
    go on without the node, too. Raises as `open_segments`; ParameterError: there is no such node,
    or it is the last one in service, and its memory is there.
    """
    location = nodes.parse_url(nodes.full_url(url))
    options = nodes.NodeOptions(any_owner=any_owner)
    control, block = _open_control(location, options)
    endpoint = Endpoint()
    try:
        count = _nodes(control, block.parameters)
        endpoint.attach(CONTROL_NODE, control.map, control.size)
        if not 0 <= node < count:
            raise ParameterError(f"{url} has {count} nodes, and no node {node}")

        def mark(which: int, generation: int) -> bool:
            sound, failed = node_word(generation, IN_SERVICE), node_word(generation, FAILED)
            done = cas(NODE_STATES + 8 * which, sound, failed) == sound
            if block.parameters.durable:
                control.place.persist(control.map, _state_at(which) + 8)
            if done:
                events.note(endpoint, events.NODE_FAILED, which, 0, 0, 0)
            return done

        def refuse(states: list[int]) -> None:
            if _is_there(location, node, control, block, options):
                raise ParameterError(why_last(url, node, states))

        def load(word: int) -> int:
            return buffer_load(control.map, word - address(CONTROL_NODE, 0))

        def cas(word: int, expected: int, desired: int) -> int:
            return buffer_cas(control.map, word - address(CONTROL_NODE, 0), expected, desired)

        return fail(node, count, load, cas, mark, refuse)
    finally:
        endpoint.detach()
        control.close()


def unlink_quietly(url: str, uuid: bytes) -> None:
    """Remove this pool, if the name still stands for it."""
    with contextlib.suppress(PoolNotFound):
        nodes.unlink_all(nodes.parse_url(nodes.full_url(url)), uuid=uuid)
