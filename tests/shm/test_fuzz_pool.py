"""Whatever the memory of a pool holds: it works, or raises a LimpetError; no crash, no hang.

Each example damages a copy of a sound pool, and a forked child then does everything that there is
to do with it. A pool that is refused is not written to. (Single segments: test_fuzz_open.py.)
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kit.processes import gather

import limpet
from limpet.shm.backends import superblock
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.catalogue.directory import DROPPING, EMPTY, HEAD, LINK, READY
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import (
    CATALOGUE_ENTRY_SIZE,
    CLIENT_SLOTS,
    EPOCH,
    EVENT_COUNT,
    EVENT_RING,
    NODE_STATES,
    OFFSET_MASK,
    REGION_ENTRY_SIZE,
    SLOT_SIZE,
    SLOTS_USED,
    NodeLayout,
    catalogue_address,
    object_sizes,
)
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, CLIENT_JOURNAL_SIZE, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK, KINDS
from limpet.shm.parameters import PoolParameters
from limpet.stores.race.parameters import GrowingParameters

PURE = limpet.build == "pure"
LIFETIME_S = 40 if PURE else 20
NODES = 2
CONTROL = "control"
SEGMENTS = (CONTROL, "0", "1")
CLIENTS = 6
PARAMETERS = PoolParameters(
    nodes=NODES, node_size=512 << 10, clients=CLIENTS, lease_us=1000, fence="wait"
)
"""`wait`: a word that happens to name a process must not get it killed."""
LAYOUT = NodeLayout.of(PARAMETERS)
CATALOGUE = catalogue_address(CLIENTS)
CLASSES = len(object_sizes(LAYOUT.block_size))
PAIRS = {b"%d" % i: bytes([i]) * (i * i % 3000) for i in range(60)} | {b"large": bytes(40_000)}

STORE = GrowingParameters.for_pool(PARAMETERS, LAYOUT, capacity=100)
fuzzed = settings(
    deadline=None,
    max_examples=8 if PURE else 40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Victim:
    """A pool whose segments can be damaged and made sound again."""

    def __init__(self, url: str) -> None:
        self.url = url
        name = url.removeprefix("shm://")
        self.paths = {segment: SHM_DIR / f"limpet.{name}.{segment}" for segment in SEGMENTS}
        self.sound = {segment: path.read_bytes() for segment, path in self.paths.items()}
        self.data = {segment: bytearray(data) for segment, data in self.sound.items()}

    def heal(self) -> None:
        self.data = {segment: bytearray(data) for segment, data in self.sound.items()}

    def word(self, segment: str, offset: int, value: int) -> None:
        offset &= OFFSET_MASK
        self.data[segment][offset : offset + 8] = value.to_bytes(8, "little")

    def read(self, segment: str, offset: int) -> int:
        offset &= OFFSET_MASK
        return int.from_bytes(self.data[segment][offset : offset + 8], "little")

    def seal(self, segment: str, parameters: PoolParameters) -> None:
        """Give a segment a superblock that holds, with other parameters."""
        found = superblock.unpack(bytes(self.sound[segment][:4096]), segment)
        fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
        if segment != CONTROL:
            fields["size"] = parameters.node_size
        self.data[segment][:4096] = superblock.pack(**{**fields, "parameters": parameters})

    def write(self) -> None:
        for segment, path in self.paths.items():
            with open(path, "r+b") as file:
                file.truncate(len(self.data[segment]))
                file.write(self.data[segment])

    def endure(self, *, joins: bool = False) -> None:
        """Write the damage, and let a child do everything with it.

        `joins`: the damage is only met by a client that has taken its slot, so that one is written.
        """
        self.write()
        (problem,) = gather(lambda: exercise(self.url), lifetime_s=LIFETIME_S)
        if problem == "refused":
            if joins:
                return
            for segment, path in self.paths.items():
                assert path.read_bytes() == self.data[segment], "a refused pool was written to"
            return
        assert not problem, problem


def exercise(url: str) -> str:
    """Everything that can be done with a pool; what was raised that should not have been."""
    try:
        pool = limpet.open(url, timeout_s=0)
    except limpet.LimpetError:
        return "refused"
    problems = []

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (limpet.LimpetError, KeyError):
            return None
        except Exception:
            problems.append(traceback.format_exc())
            return None

    store = attempt(lambda: pool.store("race", name="s"))
    shared = attempt(lambda: pool.dict("d", codec="json"))
    attempt(lambda: pool.store("race", name="new", capacity=20))
    if store is not None:
        for key in PAIRS:
            attempt(lambda k=key: store.get(k))
        attempt(lambda: store.get_many(PAIRS))
        attempt(lambda: list(store))
        attempt(lambda: list(store.items()))
        attempt(lambda: len(store))
        attempt(store.check)
    calls = [pool.stores, pool.clients, pool.nodes, pool.events, pool.audit, pool.recover]
    for call in calls:
        attempt(call)
    if store is not None:
        for number, key in enumerate([*PAIRS, b"new 1", b"new 2"]):
            attempt(lambda k=key: store.put(k, bytes(100)))
            attempt(lambda k=key: store.insert(k, b""))
            attempt(lambda k=key, n=number: store.update(k, bytes(1000 * (n % 20))))
            attempt(lambda k=key: store.delete(k))
        attempt(store.check)
    if shared is not None:
        attempt(lambda: dict(shared))
        attempt(lambda: shared.update(a=1))
    attempt(pool.audit)
    attempt(pool.close)
    return "\n".join(problems[:3])


@pytest.fixture(scope="module")
def victim(tmp_path_factory: Any) -> Iterator[Victim]:
    url = f"shm://test-fuzz-{os.getpid()}"
    names = {f.name for f in dataclasses.fields(PARAMETERS)} - {"lease_us", "latency_ns"}
    given_ = {name: getattr(PARAMETERS, name) for name in names}
    try:
        with limpet.create(url, **given_, lease=PARAMETERS.lease) as pool:
            store = pool.store("race", name="s", capacity=100)
            store.put_many(PAIRS)
            store.delete(b"7")
            pool.dict("d", codec="json", capacity=20).update({"a": [1], "b": None})
            store.check()
        found = Victim(url)
        yield found
        found.heal()  # nothing that is not limpet's any more would be destroyed
        found.write()
    finally:
        limpet.destroy(url)


def test_the_sound_pool_gives_no_problem(victim: Victim) -> None:
    victim.heal()
    victim.endure()
    with limpet.open(victim.url) as pool:
        pool.store("race", name="s").check()
        assert pool.audit()["leaked"] == 0


WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 255),
    st.builds(lambda bit, low: 1 << bit | low, st.integers(0, 63), st.integers(0, 3)),
    st.just(2**64 - 1),
)


def anywhere(low: int, high: int, count: int = 12) -> st.SearchStrategy[dict[int, int]]:
    """Words to write at aligned offsets from `low` to below `high`."""
    low, high = low & OFFSET_MASK, high & OFFSET_MASK
    offsets = st.integers(low // 8, (high - 1) // 8).map(lambda index: index * 8)
    return st.dictionaries(offsets, WORDS, min_size=1, max_size=count)


def damage(victim: Victim, segment: str, words: dict[int, int], *, joins: bool = False) -> None:
    victim.heal()
    for offset, word in words.items():
        victim.word(segment, offset, word)
    victim.endure(joins=joins)


# ---- superblocks --------------------------------------------------------------------------------


@fuzzed
@given(st.sampled_from(SEGMENTS), anywhere(0, 4096))
def test_words_of_superblocks(victim: Victim, segment: str, words: dict[int, int]) -> None:
    damage(victim, segment, words)


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.sampled_from([1, 3, 255]),
        "node_size": st.sampled_from([256 << 10, 1 << 20, 1 << 40]),
        "block_size": st.sampled_from([32 << 10, 64 << 10]),
        "clients": st.sampled_from([2, 5, 7, 4096]),
        "lease_us": st.sampled_from([1000, 2000]),
    },
)


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(st.sets(st.sampled_from(SEGMENTS), min_size=1), CHANGES)
@example({CONTROL, "0", "1"}, {"block_size": 32 << 10})
@example({CONTROL, "0", "1"}, {"nodes": 1})
@example({CONTROL, "0", "1"}, {"clients": 4096})
def test_other_parameters_in_superblocks_that_hold(
    victim: Victim, segments: set[str], changes: dict[str, Any]
) -> None:
    """Every offset on the nodes may then be another one than that of the words there."""
    victim.heal()
    try:
        parameters = dataclasses.replace(PARAMETERS, **changes)
    except limpet.ParameterError:
        return
    for segment in segments:
        if segment == CONTROL or int(segment) < parameters.nodes:
            victim.seal(segment, parameters)
    victim.endure()


@fuzzed
@given(
    st.dictionaries(
        st.sampled_from(SEGMENTS), st.integers(0, 1 << 20), min_size=1, max_size=len(SEGMENTS)
    )
)
def test_sizes_of_segments(victim: Victim, sizes: dict[str, int]) -> None:
    victim.heal()
    for segment, size in sizes.items():
        data = victim.data[segment]
        victim.data[segment] = data[:size].ljust(size, b"\0")
    victim.endure()


# ---- directories --------------------------------------------------------------------------------


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(anywhere(LAYOUT.region_directory, LAYOUT.region_directory + 5 * REGION_ENTRY_SIZE))
def test_words_of_region_directories(victim: Victim, words: dict[int, int]) -> None:
    damage(victim, "0", words)


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(anywhere(CATALOGUE, CATALOGUE + 64), st.integers(0, 3))
def test_words_of_the_catalogue(victim: Victim, words: dict[int, int], entry: int) -> None:
    damage(victim, CONTROL, {at + entry * CATALOGUE_ENTRY_SIZE: w for at, w in words.items()})


def entry(state: int, name: bytes, payload: bytes, client: int = 0, link: int = 0) -> bytes:
    """A directory entry with a checksum that holds."""
    text = name + payload
    word = state << 60 | (hash64(name) & 0xFFF) << 48 | client
    return struct.pack("<4Q", word, len(name) | len(payload) << 16, hash64(text), link) + text


NAMES = st.one_of(
    st.sampled_from([b"s", b"d", b"new", b"", b"s/0", b"\xff\xfe", b"\xed\xa0\x80", bytes(128)]),
    st.binary(max_size=20),
)
STATES = st.sampled_from([*range(EMPTY, DROPPING + 1), READY, READY])
JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([0, 1, 2, 255, 1 << 31, 1 << 36]),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
PAYLOADS = st.one_of(
    st.builds(
        lambda kind, parameters: json.dumps({"kind": kind, "parameters": parameters}).encode(),
        st.sampled_from(["race", "race", "race", "nonesuch", 5, None, ["race"]]),
        st.one_of(
            st.fixed_dictionaries(dict.fromkeys(dataclasses.asdict(STORE), JSON_VALUES)),
            st.builds(
                lambda s, g, d, m: {
                    **dataclasses.asdict(STORE), "subtables": s, "groups": g, "depth": d,
                    "depth_max": m,
                },
                st.integers(1, 9), st.one_of(st.integers(2, 40), st.just(1 << 31)),
                st.integers(0, 24), st.integers(0, 24),
            ),
            st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=3),
            JSON_VALUES,
        ),
    ),
    st.binary(max_size=40),
    st.sampled_from([b"[" * 1900, b'{"kind":' * 200, b"9" * 1900, b'"\\ud800"', b"\xff"]),
)  # fmt: skip


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(st.integers(0, 3), STATES, NAMES, PAYLOADS, st.one_of(st.just(0), WORDS))
@example(0, READY, b"\xff\xfe", b'{"kind": "race", "parameters": {}}', 0)
@example(0, READY, b"s", b'{"kind": "race", "parameters": []}', 0)
def test_catalogue_entries_with_a_checksum_that_holds(
    victim: Victim, index: int, state: int, name: bytes, payload: bytes, client: int
) -> None:
    victim.heal()
    at = (CATALOGUE & OFFSET_MASK) + index * CATALOGUE_ENTRY_SIZE
    data = entry(state, name, payload, client & 2**48 - 1)
    victim.data[CONTROL][at : at + len(data)] = data
    victim.endure()


EXTENTS = st.one_of(
    st.tuples(
        st.integers(0, LAYOUT.block_count + 1),
        st.integers(0, LAYOUT.block_count + 1),
        st.one_of(st.integers(0, 1 << 19), st.just(41 * 192)),
        st.integers(0, 2**48),
    ).map(lambda words: struct.pack("<4Q", *words)),
    st.tuples(WORDS, WORDS, WORDS, WORDS).map(lambda words: struct.pack("<4Q", *words)),
    st.binary(max_size=40),
)


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(
    st.integers(0, 3),
    STATES,
    st.one_of(NAMES, st.just(b"s/0"), st.just(b"d/0")),
    EXTENTS,
    st.one_of(st.just(0), WORDS),
    st.one_of(st.just(0), WORDS),
)
def test_region_entries_with_a_checksum_that_holds(
    victim: Victim, index: int, state: int, name: bytes, payload: bytes, client: int, link: int
) -> None:
    victim.heal()
    at = LAYOUT.region_directory + index * REGION_ENTRY_SIZE
    data = entry(state, name, payload, client & 2**48 - 1, link)
    victim.data["0"][at : at + len(data)] = data
    victim.endure()


# ---- blocks and objects -------------------------------------------------------------------------


BLOCK_WORDS = st.one_of(
    WORDS,
    st.builds(
        lambda kind, size_class, owner: kind << 60 | size_class << 52 | owner,
        st.one_of(st.integers(0, len(KINDS) - 1), st.integers(0, 15)),
        st.one_of(st.integers(0, CLASSES), st.integers(0, 255)),
        st.one_of(st.integers(0, 40), st.just(1 << 36 | 1), st.integers(0, 2**48 - 1)),
    ),
)


@pytest.mark.either_build("thousands of words")
@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(
    st.dictionaries(st.integers(0, LAYOUT.block_count - 1), BLOCK_WORDS, min_size=1, max_size=31)
)
@example({0: 3 << 60, 1: 4 << 60, 2: 4 << 60 | 10**9})
@example(dict.fromkeys(range(31), 1 << 60 | 255 << 52))
@example({index: 4 << 60 | (index + 1) % 31 for index in range(31)})
def test_block_tables(victim: Victim, words: dict[int, int]) -> None:
    damage(victim, "0", {LAYOUT.block_table + 8 * index: word for index, word in words.items()})


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(anywhere(LAYOUT.bitmaps, LAYOUT.blocks, count=40))
def test_used_bits(victim: Victim, words: dict[int, int]) -> None:
    damage(victim, "0", words)


def index_places(victim: Victim) -> list[int]:
    """Offsets, on node 0, of the words of the store's index: its directory, and its subtables."""
    at = LAYOUT.region_directory
    _, count, size, _ = struct.unpack_from("<4Q", victim.sound["0"], at + HEAD + len(b"s"))
    assert count == 0, "the directory lies in an object that the entry links to"
    (link,) = struct.unpack_from("<Q", victim.sound["0"], at + LINK)
    start = -(-(link & OFFSET_MASK & ADDRESS_MASK) // 64) * 64
    return [*range(start, start + size, 8), *subtable_places(victim, start, size)]


def subtable_places(victim: Victim, start: int, size: int) -> list[int]:
    """Offsets of the words of the subtables that this directory leads to."""
    words = struct.unpack_from(f"<{size // 8}Q", victim.sound["0"], start)
    places: list[int] = []
    for pointer in filter(None, words):
        table = pointer & OFFSET_MASK & ADDRESS_MASK
        places += range(table, table + STORE.subtable_size, 8)
    return places


def links(victim: Victim) -> list[int]:
    """Offsets, on node 0, of the words of the index that link to an object."""
    return [at for at in index_places(victim) if at % 64 and victim.read("0", at)]


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(st.integers(0, 2**32), WORDS, st.sampled_from(["all", "class", "address", "node", "bits"]))
@example(0, 2**64 - 1, "class")
@example(0, 255, "class")
@example(0, 2**64 - 1, "address")
def test_links(victim: Victim, seed: int, word: int, what: str) -> None:
    """The fingerprints stay right for most, so that what they link to is read."""
    victim.heal()
    source = random.Random(seed)
    mask = {
        "all": 2**64 - 1,
        "class": 0xFF << 48,
        "address": 0xFF_FFFF_FFFF,
        "node": 0xFF << 40,
        "bits": 1 << source.randrange(64) | 1 << source.randrange(64),
    }[what]
    for at in links(victim):
        if source.random() < 0.5:
            old = victim.read("0", at)
            mixed = (word * (1 + source.randrange(3)) if what != "class" else word << 48) & mask
            victim.word("0", at, old & ~mask | mixed)
    victim.endure()


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(st.integers(0, 2**32), st.lists(WORDS, min_size=1, max_size=20))
def test_words_of_the_index(victim: Victim, seed: int, words: list[int]) -> None:
    source = random.Random(seed)
    places = index_places(victim)
    damage(victim, "0", {source.choice(places): word for word in words})


@fuzzed
@given(st.integers(0, 2**32), WORDS, st.sampled_from(["sizes", "key", "value", "checksum"]))
@example(0, 2**64 - 1, "sizes")
@example(0, 2**64 - 1, "value")
@example(0, 2**40, "value")
def test_headers_of_objects(victim: Victim, seed: int, word: int, what: str) -> None:
    victim.heal()
    source = random.Random(seed)
    for at in links(victim):
        if source.random() < 0.5:
            header = victim.read("0", at) & 0xFF_FFFF_FFF0
            sizes = victim.read("0", header)
            new = {
                "sizes": word,
                "key": sizes & ~0xFFFF | word & 0xFFFF,
                "value": sizes & 0xFFFF | word << 16 & 2**64 - 1,
                "checksum": sizes,
            }[what]
            victim.word("0", header, new)
            if what == "checksum":
                victim.word("0", header + 8, word)
    victim.endure()


# ---- the control segment ------------------------------------------------------------------------


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(st.sampled_from([EPOCH, SLOTS_USED, EVENT_COUNT, NODE_STATES, NODE_STATES + 8]), WORDS)
@example(SLOTS_USED, 2**64 - 1)
@example(SLOTS_USED, 2**32)
@example(EPOCH, 2**64 - 1)
@example(EPOCH, 2**44 - 1)
@example(EVENT_COUNT, 2**64 - 1)
def test_single_words_of_the_control_segment(victim: Victim, at: int, word: int) -> None:
    damage(victim, CONTROL, {at & OFFSET_MASK: word})


@pytest.mark.exhaustive("thousands of words")
@fuzzed
@given(anywhere(EVENT_RING, EVENT_RING + 640), WORDS)
def test_the_event_ring(victim: Victim, words: dict[int, int], count: int) -> None:
    damage(victim, CONTROL, {**words, EVENT_COUNT & OFFSET_MASK: count})


SLOT_WORDS = st.one_of(
    WORDS,
    st.builds(
        lambda state, pid, incarnation: state << 60 | pid << 36 | incarnation,
        st.integers(0, 4),
        st.one_of(st.sampled_from([0, 1, 2**24 - 1, 2**22]), st.integers(0, 2**24 - 1)),
        st.integers(0, 3),
    ),
)


@fuzzed
@given(
    st.dictionaries(st.integers(0, CLIENTS - 1), SLOT_WORDS, min_size=1),
    st.dictionaries(
        st.one_of(st.sampled_from([8, 16, 24, 32, 40, PIN]), st.integers(1, SLOT_SIZE // 8 - 1)),
        WORDS,
        max_size=8,
    ),
    st.integers(0, CLIENTS + 2),
)
@example({0: 1 << 60}, {}, 6)
@example({0: 2 << 60}, {}, 6)
@example({0: 9 << 60 | 77 << 36}, {}, 6)
def test_client_slots(
    victim: Victim, states: dict[int, int], words: dict[int, int], used: int
) -> None:
    found = {SLOTS_USED & OFFSET_MASK: used}
    for slot, state in states.items():
        at = (CLIENT_SLOTS & OFFSET_MASK) + slot * SLOT_SIZE
        found |= {at + 8 * (offset // 8 if offset % 8 == 0 else offset): word
                  for offset, word in words.items()}  # fmt: skip
        found[at] = state
    damage(victim, CONTROL, found, joins=True)


REFERENCES = st.one_of(
    WORDS,
    st.builds(
        lambda size_class, node, offset: size_class << 48 | node << 40 | offset,
        st.one_of(st.integers(0, CLASSES), st.integers(0, 255)),
        st.sampled_from([0, 1, 2, 254, 255]),
        st.one_of(st.integers(0, PARAMETERS.node_size), st.just(2**40 - 1)),
    ),
)


@fuzzed
@given(
    st.lists(st.tuples(REFERENCES, REFERENCES), min_size=1, max_size=CLIENT_JOURNAL_SIZE),
    st.sampled_from([2, 3]),
    st.one_of(st.just(1), WORDS),
)
@example([(200 << 48 | 1 << 20, 0)], 2, 1)
@example([(255 << 48 | 16, 0)], 3, 1)
@example([(1 << 48 | 255 << 40 | 4096, 0)], 2, 1)
@example([(1 << 48 | 16, 7)], 2, 1)
def test_the_journal_of_a_dead_client(
    victim: Victim, journal: list[tuple[int, int]], state: int, pin: int
) -> None:
    """Recovery settles it, whatever it holds."""
    at = (CLIENT_SLOTS & OFFSET_MASK) + 2 * SLOT_SIZE
    words = {SLOTS_USED & OFFSET_MASK: 3, at: state << 60 | (2**24 - 1) << 36 | 5, at + PIN: pin}
    for index, pair in enumerate(journal):
        words[at + CLIENT_JOURNAL + 16 * index] = pair[0]
        words[at + CLIENT_JOURNAL + 16 * index + 8] = pair[1]
    # of this host and boot, so that it is dead
    for offset in (16, 24):
        first = (CLIENT_SLOTS & OFFSET_MASK) + offset
        words[at + offset] = int.from_bytes(victim.sound[CONTROL][first : first + 8], "little")
    damage(victim, CONTROL, words, joins=True)
