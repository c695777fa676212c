"""Memory without hardware coherence: each verb that reads it drops its lines from the cache first,
and each that writes it writes them back. A client whose one verb leaves that out is caught.

Every client has a cache of its own here (simulated.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kit.caches import COHERENT, CachedClients, cached_clients

from limpet.shm.endpoint.fabric import BUILD, Endpoint, flush_features
from limpet.shm.endpoint.simulated import CachedEndpoint
from limpet.shm.endpoint.simulated_memory import LINE
from limpet.shm.errors import CoherenceError

pytestmark = pytest.mark.skipif(
    BUILD != "compiled" or "clflushopt" not in flush_features(),
    reason="this build or CPU refuses memory without coherence",
)
AT: Final = COHERENT + 4 * LINE
WORDS: Final = 40
"""Words of a read or write: five lines, of which the first and last are shared with others."""
START: Final = AT + 32
WORD: Final = COHERENT - 8
"""A word that is 0, in the hardware-coherent range."""
BEFORE, AFTER = b"b" * 8 * WORDS, b"a" * 8 * WORDS


def _read_into(endpoint: Any) -> bytes:
    found = bytearray(len(AFTER))
    endpoint.read_into(START, found)
    return bytes(found)


def _read_words(endpoint: Any) -> bytes:
    found = array("Q", bytes(len(AFTER)))
    endpoint.read_words(START, found, WORDS)
    return found.tobytes()


def _read_tagged(endpoint: Any) -> bytes:
    found = array("Q", bytes(len(AFTER)))
    endpoint.read_tagged(START, START + 128, found, 0, 0)
    endpoint.read_words(START + 256, found, WORDS - 32, 32)
    return found.tobytes()


def _post_read(endpoint: Any) -> bytes:
    found = array("Q", bytes(len(AFTER)))
    endpoint.post_read(START, found, WORDS)
    endpoint.wait()
    return found.tobytes()


def _post_tagged(endpoint: Any) -> bytes:
    found = array("Q", bytes(len(AFTER)))
    endpoint.post_tagged(START, START + 128, found, 0, 0)
    endpoint.post_read(START + 256, found, WORDS - 32, 32)
    endpoint.wait()
    return found.tobytes()


def _post_image(endpoint: Any) -> bytes:
    image = endpoint.image(len(AFTER))
    endpoint.post_image(image, START, WORDS)
    endpoint.wait()
    return bytes(image.words)


READS: Final[dict[str, Callable[[Any], bytes]]] = {
    "fetch": lambda endpoint: endpoint.fetch(START, len(AFTER)),  # type: ignore[no-any-return]
    "post_read": _post_read,
    "post_tagged": _post_tagged,
    "post_image": _post_image,
    "read": lambda endpoint: endpoint.read(START, len(AFTER)),  # type: ignore[no-any-return]
    "read_into": _read_into,
    "read_words": _read_words,
    "read_tagged": _read_tagged,
}
WRITES: Final[dict[str, Callable[[Any, bytes], object]]] = {
    "post_write": lambda endpoint, data: endpoint.post_write(START, array("Q", data), WORDS),
    "post_gather": lambda endpoint, data: endpoint.post_gather(
        START, array("Q", data[:16]), 2, data[16:100], data[104:]
    ),
    "post_gather_if": lambda endpoint, data: endpoint.post_gather_if(
        endpoint.post_load(WORD), 0, START, array("Q", data[:16]), 2, data[16:100], data[104:]
    ),
    "write": lambda endpoint, data: endpoint.write(START, data),
    "write_words": lambda endpoint, data: endpoint.write_words(START, array("Q", data), WORDS),
    "write_gather": lambda endpoint, data: endpoint.write_gather(
        START, array("Q", data[:16]), 2, data[16:100], data[104:]
    ),
}


def at_end(endpoint: Any, verb: str, *arguments: int) -> None:
    """An operation that sends a verb."""
    endpoint.begin()
    getattr(endpoint, verb)(*arguments)
    endpoint.end()


ATOMICS: Final[dict[str, Callable[[Any], object]]] = {
    "load": lambda endpoint: endpoint.load(AT),
    "load_all": lambda endpoint: endpoint.load_all((AT, AT + 8)),
    "read_between": lambda endpoint: endpoint.read_between((AT, AT + 8), 16),
    "store": lambda endpoint: endpoint.store(AT, 1),
    "store_two": lambda endpoint: endpoint.store_two(AT, 1, AT + 8, 1),
    "pin": lambda endpoint: endpoint.pin(AT, 1, AT + 8, 0, AT + 16, 0),
    "glance": lambda endpoint: endpoint.glance(AT + 8, AT, 0),
    "stands": lambda endpoint: endpoint.stands(AT, 0, AT + 8, 0, AT, 0, AT + 8, 0),
    "swap": lambda endpoint: endpoint.swap(AT, 1),
    "cas": lambda endpoint: endpoint.cas(AT, 0, 1),
    "faa": lambda endpoint: endpoint.faa(AT, 1),
    "fetch_or": lambda endpoint: endpoint.fetch_or(AT, 1),
    "mcas": lambda endpoint: endpoint.mcas(AT, 0, 1, 1, 1),
    "post_load": lambda endpoint: endpoint.post_load(AT),
    "post_swap": lambda endpoint: endpoint.post_swap(AT, 1),
    "post_cas": lambda endpoint: endpoint.post_cas(AT, 0, 1),
    "post_cas_if": lambda endpoint: endpoint.post_cas_if(endpoint.post_load(AT - 8), 0, AT, 0, 1),
    "post_faa": lambda endpoint: endpoint.post_faa(AT, 1),
    "post_fetch_or": lambda endpoint: endpoint.post_fetch_or(AT, 1),
    "post_mcas": lambda endpoint: endpoint.post_mcas(AT, 0, 1, 1, 1),
    "post_set": lambda endpoint: endpoint.post_set(AT, 1),
    "send_clear": lambda endpoint: at_end(endpoint, "send_clear", AT, 1),
    "send_store": lambda endpoint: at_end(endpoint, "send_store", AT, 1),
    "send_store_two": lambda endpoint: at_end(endpoint, "send_store_two", AT, 1, AT + 8, 1),
    "futex_wait": lambda endpoint: endpoint.futex_wait(AT, 0, 1),
}
"""Atomics are made in the hardware-coherent range only: elsewhere they are refused."""
OTHERS: Final = {
    "attach", "watch_states", "expect", "expected", "release", "detach", "guard", "make_durable",
    "give_up",  # a cas
    "see_states", "lost", "failed", "wait", "begin", "end", "background", "begin_idle",
    "begin_last", "adopted",
    "counters", "reset_counters", "count_at", "pause", "microseconds", "futex_wake",
    "result",  # of a ticket
    "place_of",  # for a thread that sleeps at words without verbs
    "send_words",  # `write_words`, when the operation ends
    "lend",  # memory that is used without verbs; only where it is coherent (stores/core/views.py)
    "image",  # private words, which read_words fills
    "prefetch", "prefetch_target",  # hints, which are off where memory is incoherent
    "write_back", "invalidate",  # what this is about
    "lost_pages", "our_loss",  # what is poisoned; of incoherent memory the whole is lost
    "met_loss",  # as these
    "dirty", "flush", "persist",  # of durable pools, which are coherent
    "gathers", "fuse", "noted", "durable", "frame", "latency_ns", "abandoned", "hints",
}  # fmt: skip
"""Methods and attributes that neither read nor write a node's memory for a client."""


def left_out(verb: str, part: str) -> type[CachedEndpoint]:
    """An endpoint whose `verb` leaves `part` out: write_back, or invalidate."""

    def act(self: Any, *given: Any) -> Any:
        self.inside = True
        try:
            return getattr(CachedEndpoint, verb)(self, *given)
        finally:
            self.inside = False

    def leave_out(self: Any, addr: int, size: int) -> Any:
        return 0 if self.inside else getattr(CachedEndpoint, part)(self, addr, size)

    return type("LeftOut", (CachedEndpoint,), {verb: act, part: leave_out, "inside": False})


@pytest.fixture
def host() -> Iterator[CachedClients]:
    with cached_clients() as made:
        yield made


def test_each_public_verb_is_known_here() -> None:
    """A verb that is added has to be entered above, with its flush."""
    public = {name for name in dir(Endpoint) if not name.startswith("_")}
    assert public - {*READS, *WRITES, *ATOMICS, *OTHERS} == set()


def exchanged(host: CachedClients, writer: Any, reader: Any, write: str, read: str) -> bool:
    """Whether the reader sees what the writer wrote, though both have the lines in their caches."""
    for endpoint in (writer, reader):
        READS["read"](endpoint)
    host.client().write(START, BEFORE)
    READS["read"](reader)
    WRITES[write](writer, AFTER)
    found = READS[read](reader)
    gap = slice(100, 104) if "gather" in write else slice(0, 0)  # zeros, to a whole word
    expected = bytearray(AFTER)
    expected[gap] = bytes(gap.stop - gap.start)
    return found == bytes(expected)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_written_is_read_by_another_client(host: CachedClients, write: str, read: str) -> None:
    assert exchanged(host, host.client(), host.client(), write, read)


@pytest.mark.parametrize("write", WRITES)
def test_write_that_is_not_written_back_is_caught(host: CachedClients, write: str) -> None:
    writer = host.client(left_out(write, "write_back"))
    assert not exchanged(host, writer, host.client(), write, "read")


@pytest.mark.parametrize("read", READS)
def test_read_that_does_not_invalidate_is_caught(host: CachedClients, read: str) -> None:
    reader = host.client(left_out(read, "invalidate"))
    assert not exchanged(host, host.client(), reader, "write", read)


def kept(host: CachedClients, writer: Any, write: str) -> bool:
    """Whether a write leaves what another client has written beside it, in its first and last
    line."""
    other = host.client()
    READS["read"](writer)
    writer.read(AT, LINE * 6)
    other.write(AT, b"o" * 32)
    other.write(START + len(AFTER), b"o" * 32)
    WRITES[write](writer, AFTER)
    return bytes(host.memory[AT : AT + 32] + host.memory[START + len(AFTER) :][:32]) == b"o" * 64


@pytest.mark.parametrize("write", WRITES)
def test_write_renews_the_lines_at_its_edges(host: CachedClients, write: str) -> None:
    assert kept(host, host.client(), write)


@pytest.mark.parametrize("write", WRITES)
def test_write_that_does_not_renew_them_is_caught(host: CachedClients, write: str) -> None:
    assert not kept(host, host.client(left_out(write, "invalidate")), write)


@pytest.mark.parametrize("atomic", ATOMICS)
def test_atomic_outside_of_the_coherent_range_is_refused(host: CachedClients, atomic: str) -> None:
    with pytest.raises(CoherenceError):
        ATOMICS[atomic](host.client())
