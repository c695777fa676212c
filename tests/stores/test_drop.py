"""`pool.drop`: all memory is given back, also when clients use the store, or one is killed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import signal
import time
import types
from typing import Any

import pytest
from kit.processes import gather, start
from kit.puppets import Puppet, verb_on_address

import limpet
from limpet.fault.explore.greenlets import greenlet
from limpet.shm.catalogue.directory import DROPPING, EMPTYING, READY, VOID, Directory
from limpet.shm.endpoint.slots import PIN
from limpet.stores import contents
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race"]
)

ALL = sorted({**KINDS, **UNRECOVERED, **UNPROVED})
PAIRS = {b"key %d" % n: bytes([n]) * (n * 37 % 700) for n in range(60)}


def fill(pool: limpet.Pool, kind: str, name: str = "s") -> Any:
    store = pool.store(kind, name=name, capacity=200)
    for key, value in PAIRS.items():
        store.put(key, value[:64] if kind in ("loco",) else value)
    return store


def in_use(pool: limpet.Pool) -> tuple[int, int]:
    """Bytes that stores have: objects, and regions of whole blocks."""
    found = pool.audit()
    assert found["leaked"] == found["held"] == 0
    blocks = sum(
        count for node in range(pool.parameters.nodes) for _, count, _ in pool.regions.extents(node)
    )
    return found["reachable"], blocks


@pytest.mark.parametrize("kind", ALL)
def test_dropped_store_gives_everything_back(pools: Any, kind: str) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    other = fill(pool, "race", "other")
    before = in_use(pool)
    store = fill(pool, kind)
    assert in_use(pool) != before
    pool.drop("s")
    assert in_use(pool) == before
    assert [entry["name"] for entry in pool.stores()] == ["other"]
    for work in (
        lambda: store.get(b"key 1"),
        lambda: store.put(b"key 1", b"v"),
        lambda: store.delete(b"key 1"),
        lambda: list(store),
    ):
        with pytest.raises(limpet.StoreDropped, match="'s' was dropped"):
            work()
    again = fill(pool, kind)
    assert len(again) == len(PAIRS)
    again.check()
    assert other.get(b"key 9") == PAIRS[b"key 9"]
    with pytest.raises(limpet.StoreDropped):
        store.get(b"key 1")


# ---- killed while dropping ----------------------------------------------------------------------


def die_dropping(pool: limpet.Pool, fuse: int) -> bool:
    """Whether a child that drops "s" dies at its step number `fuse`."""

    def work() -> None:
        pool.client_id  # noqa: B018
        pool.endpoint.fuse = fuse
        pool.drop("s")
        pool.endpoint.fuse = 0

    pid, out = start(work)
    with out:
        out.read()
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.either_build("every step of the same lines", but=["creator-race", "dropper-race"])
@pytest.mark.exhaustive("every kind", quick=["*-race"])
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "rtx-sherman", "loco"])
@pytest.mark.parametrize("finisher", ["recover", "creator", "dropper"])
def test_killed_drop_is_finished_by_others(pools: Any, kind: str, finisher: str) -> None:
    """Killed at steps all over the drop; what was dropped is given back, once, and nothing else."""
    pool = pools(nodes=3, node_size="8MiB")
    other = fill(pool, "race", "other")
    before = in_use(pool)
    states = set()
    fuse, died = 1, True
    while died:
        store = fill(pool, kind)
        died = die_dropping(pool, fuse)
        states |= {entry.state for entry in pool.catalogue if entry.name == b"s"}
        ended = finisher == "recover" or not died
        if ended:
            pool.recover()
        elif finisher == "creator":
            assert len(pool.store(kind, name="s", capacity=200)) in (0, len(PAIRS))
        if not died:
            break
        # Before its first step the store is as it was, with all that was in it.
        with contextlib.suppress(limpet.StoreError):
            pool.drop("s")
        pool.recover()
        assert in_use(pool) == before, f"killed at step {fuse}"
        assert dict(other.items()) == PAIRS
        other.check()
        with pytest.raises(limpet.StoreDropped):
            store.get(b"key 1")
        fuse += 1 + fuse // 6
    assert {DROPPING, EMPTYING} <= states
    assert fuse > (20 if kind == "loco" else 60)


def test_interrupted_drop_is_finished_by_the_same_client(pools: Any, monkeypatch: Any) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    before = in_use(pool)
    fill(pool, "race")

    def interrupt(entry: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "handle_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.drop("s")
    monkeypatch.undo()
    assert [(entry.state, entry.client) for entry in pool.catalogue] == [(DROPPING, 0)]
    assert pool.stores() == []
    assert pool.recover()["stores"] == 1
    assert [entry.state for entry in pool.catalogue] == [VOID]
    assert in_use(pool) == before


def test_a_store_whose_drop_begins_while_it_is_attached_to_is_not_used(
    pools: Any, monkeypatch: Any
) -> None:
    """The handle has the word of READY, which was seen under the pin: not that of DROPPING."""
    pool = pools(nodes=3, node_size="8MiB")
    before = in_use(pool)
    fill(pool, "race")
    entry = pool.exclusively(lambda: pool.catalogue.at_home(b"s"))
    handle_of = pool.handle_of

    def late(entry: Any) -> Any:
        assert pool.catalogue.take(entry, DROPPING, pool.membership.ident)
        return handle_of(entry)

    monkeypatch.setattr(pool, "handle_of", late)
    store = pool._attach_to(entry)
    monkeypatch.undo()
    pool.catalogue.let_go(entry.number, pool.membership.ident)
    assert pool.recover()["stores"] == 1
    with pytest.raises(limpet.StoreDropped):
        store.put(b"key", b"value")
    assert pool._attach_to(entry) is None
    assert in_use(pool) == before


def test_a_store_whose_drop_begins_when_it_is_made_is_made_anew(
    pools: Any, monkeypatch: Any
) -> None:
    """Its creator must not take the word of DROPPING for the one that it made."""
    pool = pools(nodes=3, node_size="8MiB")
    before = in_use(pool)
    change = type(pool.catalogue)._change
    other = 77 << 24 | 1
    dropped: list[Any] = []

    def drops_at_once(self: Any, at: int, expected: int, desired: int) -> bool:
        changed = bool(change(self, at, expected, desired))
        if self is pool.catalogue and changed and desired >> 60 == READY and not dropped:
            (entry,) = self.named(b"s")
            dropped.append(self.take(entry, DROPPING, other))
            self.let_go(entry.number, other)
        return changed

    monkeypatch.setattr(type(pool.catalogue), "_change", drops_at_once)
    store = pool.store("race", name="s", capacity=200)
    assert dropped[0] is not None
    assert store.entry_word >> 60 == READY
    store.put(b"key", b"value")
    pool.drop("s")
    with pytest.raises(limpet.StoreDropped):
        store.put(b"key", b"value")
    assert in_use(pool) == before


# ---- others at work -----------------------------------------------------------------------------


def attach(pool: limpet.Pool, kind: str) -> Any:
    """The store "s", once there is one."""
    while True:
        try:
            return pool.attached(kind, "s")[0]
        except limpet.StoreDropped:
            time.sleep(0.001)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", ["race", "fusee", "rtx-sherman"])
def test_drop_before_an_operation_has_pinned(pools: Any, kind: str, number: int) -> None:
    """It has read the epoch, and no client can know that it is at work; also once it has memory."""
    pool = pools(nodes=3, node_size="8MiB")
    before = in_use(pool)
    fill(pool, kind)
    slow = Puppet(pools, pool.url, kind, "s")

    def put_twice() -> None:
        slow.store.put(b"new", b"value")
        slow.store.put(b"new", b"value")

    def put() -> None:
        with pytest.raises(limpet.StoreDropped):
            put_twice()

    assert not slow.begin(put, verb_on_address("swap", slow.pool.client.slot + PIN, number))
    pool.drop("s")
    assert slow.go()
    slow.pool.close()
    assert in_use(pool) == before


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
@pytest.mark.parametrize("kind", ALL)
def test_drop_while_others_write_leaves_nothing(pools: Any, kind: str) -> None:
    """Three writers go on until they have met two drops, while it is made anew again and again."""
    if kind in UNRECOVERED or kind in UNPROVED:
        pytest.skip("promises nothing when clients meet or die")
    pool = pools(nodes=3, node_size="16MiB")
    pool.counter("ended").add(0)
    before = in_use(pool)
    fill(pool, kind)

    def write(number: int) -> None:
        dropped = 0
        store = attach(pool, kind)
        for turn in itertools.count():
            key = b"key %d" % (turn % 60)
            try:
                if turn % 7 == number:
                    with contextlib.suppress(KeyError):
                        store.delete(key)
                else:
                    store.put(key, bytes(turn % 60))
                store.get(key)
            except limpet.StoreDropped:
                dropped += 1
                if dropped == 2:
                    pool.counter("ended").add(1)
                    return
                store = attach(pool, kind)

    def drop() -> None:
        while True:
            time.sleep(0.03)
            pool.drop("s")
            if pool.counter("ended").value == 3:
                return
            fill(pool, kind)

    gather(*[lambda n=n: write(n) for n in range(3)], drop)
    pool.recover()
    assert in_use(pool) == before


def test_two_drop_one_store(pools: Any) -> None:
    pool = pools(nodes=2)
    before = in_use(pool)
    for _ in range(5):
        fill(pool, "race")

        def drop() -> bool:
            try:
                pool.drop("s")
            except limpet.StoreError:
                return False
            return True

        assert any(gather(drop, drop))
        assert in_use(pool) == before
    with pytest.raises(limpet.StoreError, match="no store 's'"):
        pool.drop("s")


def test_drop_waits_for_a_stopped_operation_by_the_policy(pools: Any) -> None:
    pool = pools(lease=0.05)
    store = fill(pool, "race")

    def stop() -> None:
        store.client.enter()
        os.kill(os.getpid(), signal.SIGSTOP)

    pid, out = start(stop)
    os.waitpid(pid, os.WUNTRACED)
    pool.drop("s")
    out.close()
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert pool.stores() == []


LOOKS = {
    "audit": lambda pool: pool.audit(),
    "count": lambda pool: pool.stores(count=True),
    "growth": lambda pool: pool.growth(),
    "recover": lambda pool: pool.recover(),
    "links": lambda pool: pool.exclusively(
        lambda: pool.client.pinned(
            lambda: [pool.contents.linked(1 << 12, number << 48) for number in range(3)]
        )
    ),
}


class Dropper:
    """A client that has waited for all operations, and stands still before it frees anything."""

    def __init__(self, url: str) -> None:
        self.pool = limpet.open(url)
        self.at = greenlet(lambda: self.pool.drop("s"))
        free_all = contents._free_all

        def late(pool: Any, entry: Any) -> Any:
            self.at.parent.switch()
            return free_all(pool, entry)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(contents, "_free_all", late)
            self.at.switch()

    def end(self) -> None:
        self.at.switch()
        assert self.at.dead


@pytest.mark.parametrize("anew", ["", "race", "loco"], ids=["gone", "alike", "another"])
@pytest.mark.parametrize("look", list(LOOKS))
@pytest.mark.parametrize("kind", ["race", "fusee", "rtx-sherman", "loco", "cache"])
def test_a_look_makes_nothing_of_a_store_that_is_dropped_meanwhile(
    pools: Any, monkeypatch: Any, kind: str, look: str, anew: str
) -> None:
    """The drop began before the look, and so does not wait for its pin. It ends once the look has
    read the entry; perhaps there is another store of the name by then, which is dropped, too, by
    the same client: its entry has the same word."""
    pool = pools(nodes=3, node_size="8MiB")
    made = lambda at: at.cache("s").store if kind == "cache" else fill(at, kind)  # noqa: E731
    other = fill(pool, "race", "other")
    before = in_use(pool), pool.regions.references().tolist()
    made(pool).put(b"key", b"value")
    dropper = Dropper(pool.url)
    handle_of = pool.handle_of
    ends = []

    def late(entry: Any, *given: Any) -> Any:
        if entry.name == b"s" and not ends:
            ends.append(entry)
            dropper.end()
            if anew:
                store = dropper.pool.store(anew, name="s", capacity=3000)
                again = dropper.pool.catalogue.at(store.entry_number)
                assert again.number == entry.number
                taken = dropper.pool.catalogue.take(again, DROPPING, entry.client)
                assert taken is not None
        return handle_of(entry, *given)

    monkeypatch.setattr(pool, "handle_of", late)
    LOOKS[look](pool)
    if not ends:
        dropper.end()
    monkeypatch.undo()
    dropper.pool.exclusively(lambda: [dropper.pool.catalogue.let_go(n, dropper.pool.client.ident)
                                      for n in range(3)])  # fmt: skip
    dropper.pool.close()
    pool.recover()
    assert (in_use(pool), pool.regions.references().tolist()) == before
    assert [store["name"] for store in pool.stores()] == ["other"]
    other.check()


def test_a_region_that_is_dropped_while_it_is_found_is_not_there(
    pools: Any, monkeypatch: Any
) -> None:
    """It was said that the pool is damaged, and to be destroyed."""
    pool = pools(nodes=2)
    pool.exclusively(lambda: pool.regions.obtain(0, "r", 300))
    find = Directory.find

    def late(directory: Any, name: bytes) -> Any:
        entry = find(directory, name)
        monkeypatch.undo()
        pool.regions.discard(0, "r")
        return entry

    monkeypatch.setattr(Directory, "find", late)
    assert pool.exclusively(lambda: pool.regions.find(0, "r")) is None


@pytest.mark.parametrize("rest", ["race", "fusee", "swarm", "rtx-sherman"])
@pytest.mark.parametrize("first", ["fusee", "swarm", "dm-abd"])
def test_stores_of_names_that_begin_alike_have_nothing_in_common(
    pools: Any, first: str, rest: str
) -> None:
    """A store "a/0" was taken for a region of the store "a"."""
    pool = pools(nodes=3, node_size="16MiB")
    names = ("a/0", "a", "a/1", "a/0/0", "a/lock 0")
    for _ in range(2):
        stores = {name: fill(pool, first if name == "a" else rest, name) for name in names}
        for name, store in stores.items():
            store.put(b"name", name.encode())
        assert pool.audit()["leaked"] == 0
        for name in names:
            assert stores[name].get(b"name") == name.encode()
            assert all(stores[name].get(key) == value for key, value in PAIRS.items())
            stores[name].check()
            pool.drop(name)
        assert in_use(pool) == (0, 0)


@pytest.mark.parametrize("size", [300, 20_000, 3_000_000])
def test_an_audit_finds_the_regions_of_no_store(pools: Any, size: int) -> None:
    pool = pools(nodes=2, node_size="8MiB")
    for kind in ("race", "fusee"):
        fill(pool, kind, f"s/{kind}")
    pool.lock("lock").acquire()
    assert pool.audit()["leaked"] == 0
    pool.exclusively(lambda: pool.regions.obtain(1, "gone\0001", size))
    audit = pool.audit()
    assert audit["leaked"] >= size
    assert sum(audit.values()) == 2 * audit["total"]
    pool.exclusively(lambda: pool.regions.discard(1, "gone\0001"))
    assert pool.audit()["leaked"] == 0


def test_the_plan_of_a_region_goes_with_its_store(pools: Any) -> None:
    """A creator is killed in the midst of it; the next one that wants the name fails."""
    pool = pools(nodes=2, node_size="8MiB")
    before = in_use(pool)
    obtain = type(pool.regions).obtain

    def dies(regions: Any, node: int, name: str, size: int, **given: Any) -> Any:
        kill = lambda region: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        return obtain(regions, node, name, size, kill if node == 1 else None, **given)

    def fails(regions: Any, node: int, *given: Any) -> Any:
        raise limpet.StoreFull

    def create() -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(pool.regions), "obtain", dies)
            fill(pool, "race")

    pid, out = start(create)
    with out:
        out.read()
    os.waitpid(pid, 0)
    pool.recover()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(pool.regions), "obtain", fails)
        with pytest.raises(limpet.StoreFull):
            pool.store("race", name="s", capacity=200)
    assert in_use(pool) == before
    assert not len(pool.regions.references())


# ---- handles that are cut off -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*ALL, "cache"])
def test_a_handle_whose_making_is_cut_off_is_told_of_no_replaced_node(
    pools: Any, kind: str, monkeypatch: Any
) -> None:
    """Other handles of the process raised its AttributeError at the first operation after it."""
    pool = pools(nodes=3, node_size="8MiB")
    there = pools.again(pool)
    other = fill(pool, "fusee", "other")
    cache = kind == "cache"
    made = lambda at: at.cache("s") if cache else at.store(kind, name="s")  # noqa: E731
    made(there)
    kept: list[BaseException] = []
    search = Directory._search

    def cut(directory: Any, name: bytes) -> Any:
        if directory in pool.regions.directories:
            raise KeyboardInterrupt
        return search(directory, name)

    monkeypatch.setattr(Directory, "_search", cut)
    try:
        made(pool)
    except KeyboardInterrupt as error:
        kept.append(error)  # and with it the frames that have the handle
    monkeypatch.undo()
    assert kept
    there.fail_node(1)
    there.replace_node(1)
    assert dict(other.items()) == PAIRS


# ---- many, and full memory ----------------------------------------------------------------------


@pytest.mark.exhaustive("hundreds of stores")
def test_hundreds_of_stores_come_and_go_in_one_pool(pools: Any) -> None:
    pool = pools(node_size="256MiB")
    before = in_use(pool)
    count = 60 if limpet.build == "pure" else 500
    for number in range(count):
        pool.store("race", name=f"s{number}", limit=100).put(b"k", b"%d" % number)
    for number in range(0, count, 97):
        assert pool.store("race", name=f"s{number}").get(b"k") == b"%d" % number
    assert len(pool.stores()) == count
    for number in range(count):
        pool.drop(f"s{number}")
    assert in_use(pool) == before


def test_store_is_dropped_in_a_full_pool(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    before = in_use(pool)
    store = fill(pool, "race")
    with contextlib.suppress(limpet.StoreFull):
        for number in itertools.count():
            store.put(b"more %d" % number, bytes(1000))
    pool.drop("s")
    assert in_use(pool) == before
    fill(pool, "race")


@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "rtx-sherman", "rcuckoo", "loco"])
@pytest.mark.parametrize("replaced", [False, True])
def test_store_with_a_lost_node_is_dropped(pools: Any, kind: str, replaced: bool) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    fill(pool, kind)
    pool.fail_node(1)
    if replaced:
        pool.replace_node(1)
    pool.drop("s")
    audit = pool.audit()
    assert audit["reachable"] == audit["leaked"] == audit["held"] == 0
    assert pool.stores() == []


def cut_while_freeing(handle_of: Any, entry: Any) -> Any:
    """A handle whose objects are not freed to the last: a signal handler raises before."""

    def show_progress(count: int) -> None:
        if count == min(3, len(found) - 1):
            raise KeyboardInterrupt

    found = handle_of(entry).references()
    return types.SimpleNamespace(references=lambda: found, show_progress=show_progress)


@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "rtx-sherman", "rcuckoo"])
@pytest.mark.parametrize("when", ["before", "cut off", "killed"])
def test_store_is_dropped_when_a_second_node_is_lost(
    pools: Any, kind: str, when: str, monkeypatch: Any
) -> None:
    """Before the drop, or after one that was cut off, or killed, in the midst of freeing."""
    pool = pools(nodes=3, node_size="8MiB")
    store = fill(pool, kind)
    pool.fail_node(1)
    if when == "cut off":
        monkeypatch.setattr(pool, "handle_of", functools.partial(cut_while_freeing, pool.handle_of))
        with pytest.raises(KeyboardInterrupt):
            pool.drop("s")
        monkeypatch.undo()
        assert [entry.state for entry in pool.catalogue if entry.name == b"s"] == [EMPTYING]
    elif when == "killed":
        assert die_dropping(pool, 20)
    pool.fail_node(2)
    with contextlib.suppress(limpet.StoreError):
        pool.drop("s")
    pool.recover()
    audit = pool.audit()
    assert audit["reachable"] == audit["leaked"] == audit["held"] == 0
    assert pool.stores() == []
    with pytest.raises(limpet.StoreDropped):
        store.get(b"key 1")


def test_handle_of_a_dropped_store_cannot_be_unpickled(pools: Any) -> None:
    pool = pools()
    data = pickle.dumps(fill(pool, "race"))
    assert pickle.loads(data).get(b"key 1") == PAIRS[b"key 1"]
    pool.drop("s")
    with pytest.raises(limpet.StoreDropped):
        pickle.loads(data)
    assert pool.stores() == []


def test_channels_are_no_store_to_drop(pools: Any) -> None:
    pool = pools()
    pool.counter("c").add(5)
    with pytest.raises(limpet.StoreError, match="no store"):
        pool.drop("channels")
    assert pool.counter("c").value == 5


def test_drop_of_another_store_ends_no_handle(pools: Any, kind: str) -> None:
    """A store's note of its entry in the catalogue was overwritten by its own searches, where
    classes share names; so it took the next drop of any store for its own."""
    pool = pools(nodes=3)
    store = pool.store(kind, name="stays")
    pool.store("race", name="goes")
    keys = [b"k%d" % number for number in range(8)]
    store.put_many(dict.fromkeys(keys, b"v"))
    pool.drop("goes")
    for key in keys:
        assert store.get(key) == b"v"
        store.put(key, b"w")


@pytest.mark.parametrize("kind", ["rtx-sherman", "rtx-race"])
def test_transaction_writes_nothing_to_a_dropped_store(pools: Any, kind: str) -> None:
    """Another store has its memory by then."""
    pool = pools(node_size="8MiB")
    store = fill(pool, kind)
    other = pools.again(pool)
    other.drop("s")
    heir = fill(other, kind, "heir")
    with pytest.raises(limpet.StoreDropped):
        pool.transaction(lambda tx: tx.put(store, b"foreign", b"value"))
    assert heir.get(b"foreign") is None
    assert dict(heir.items()) == PAIRS
    assert pool.audit()["leaked"] == 0


@pytest.mark.parametrize("kind", ["rtx-sherman", "loco", "race"])
@pytest.mark.parametrize("dropper", [True, False])
def test_new_store_has_the_memory_of_a_dropped_one(pools: Any, kind: str, dropper: bool) -> None:
    """The blocks are those of the client that filled the store."""
    pool = pools(node_size="8MiB")
    other = pools.again(pool)
    store = pool.store("race", name="s")
    with contextlib.suppress(limpet.StoreFull):
        for number in itertools.count():
            store.put(b"key %d" % number, bytes(4000))
    pool.drop("s")
    fill(pool if dropper else other, kind)


def test_interrupted_end_of_a_region_is_finished_and_nobody_is_killed(
    pools: Any, monkeypatch: Any
) -> None:
    pool = pools(lease=0.1)
    fill(pool, "race")

    def interrupt(node: int, mark: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool.regions, "_release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.drop("s")
    monkeypatch.undo()
    other = pools.again(pool)
    fill(other, "race")
    assert pool.store("race", name="s").get(b"key 1") == PAIRS[b"key 1"]
    assert pool.events() == []
