"""Races and error paths of memory management that once went wrong, each step by step."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kit.clients import pair_references, pinned
from kit.endpoints import Interrupted, WatchedPool
from kit.processes import children, gather

import limpet
from limpet.shm import pool as pool_module
from limpet.shm.clients.membership import Membership
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.slots import CLIENT_JOURNAL
from limpet.shm.endpoint.words import FREE, LARGE, SLAB, TAIL, block_word

KEY = b"K"
OLD = b"old-value-of-K.."
NEW = b"new-value-of-K.."
SIZE = 40
"""Bytes of an object of KEY and one of these values."""


def stores(*handles: Any) -> list[Any]:
    return [handle.store("race", name="test", capacity=100) for handle in handles]


def dies(pool: Any, work: Any, opens: Any = limpet.open) -> None:
    """A child, a client of its own, does `work(its handle)` and is killed, if not before."""

    def live_and_die() -> None:
        handle = opens(pool.url)  # as long as it is held, the client does not leave
        work(handle)
        os.kill(os.getpid(), signal.SIGKILL)

    with children([live_and_die]) as started:
        assert os.waitstatus_to_exitcode(os.waitpid(started[0][0], 0)[1]) == -signal.SIGKILL


def never_sweeps(pool: Any) -> None:
    """The client leaves it to others to recover the dead, until it is out of memory."""
    pool.membership.sweep_sometimes = list


def meanwhile(object_: Any, name: str, work: Any, *, first: bool) -> None:
    """Have `work` done once, just before (`first`) or after a call of that method of the object."""
    method = getattr(object_, name)
    done: list[bool] = []

    def both(*arguments: Any, **options: Any) -> Any:
        if done:
            return method(*arguments, **options)
        done.append(True)
        if first:
            work()
            return method(*arguments, **options)
        result = method(*arguments, **options)
        work()
        return result

    setattr(object_, name, both)


def reads(store: Any, reference: int) -> tuple[bytes, bytes]:
    """Key and value of the object, for a reader that has met it before."""
    store.objects.load(reference)
    return store.objects.key(), store.objects.value()


def test_block_seen_unused_late_is_kept_from_readers_that_pinned_before(pools: Any) -> None:
    """The grace period of a leaving client's block began before the block was seen unused."""
    pool = pools()
    leaving, reader, updating, writing = (pools.again(pool) for _ in range(4))
    of_leaving, of_reader, of_updating, of_writing = stores(leaving, reader, updating, writing)
    of_updating.put(b"warm", OLD)
    before = set(pool.references().tolist())
    of_leaving.put(KEY, OLD)
    (reference,) = set(pool.references().tolist()) - before

    def replaced() -> None:
        reader.client.enter()
        of_updating.update(KEY, NEW)

    meanwhile(leaving.blocks, "unused", replaced, first=True)
    leaving.close()
    for number in range(3):
        of_writing.put(b"%d" % number, OLD)
    assert reads(of_reader, reference) == (KEY, OLD)
    reader.client.leave()


def test_horizon_holds_for_what_is_unlinked_after_it_was_taken(pools: Any) -> None:
    """With no client pinned the horizon was infinite, also for a block that was freed
    afterwards."""
    pool = pools()
    reader, updating, writing, rescuer = (pools.again(pool) for _ in range(4))
    of_reader, of_updating, of_writing = stores(reader, updating, writing)
    dies(pool, lambda dying: stores(dying)[0].put(KEY, OLD))
    never_sweeps(updating)
    never_sweeps(writing)
    (reference,) = pair_references(pool)
    of_updating.put(b"warm", OLD)

    def replaced() -> None:
        reader.client.enter()
        of_updating.update(KEY, NEW)
        assert rescuer.recover()["blocks"] == 1

    meanwhile(writing.blocks, "claim_slab", replaced, first=True)
    for number in range(3):
        of_writing.put(b"%d" % number, OLD)
    assert reads(of_reader, reference) == (KEY, OLD)
    reader.client.leave()


class CutOffPool(WatchedPool):
    """A client that is killed as soon as it has freed an object."""

    def _wire(self, latency_ns: int) -> None:
        super()._wire(latency_ns)

        def after(verb: str, address: int) -> None:
            if verb == "mcas":
                os.kill(os.getpid(), signal.SIGKILL)

        self.endpoint.after = after


def test_late_recoverer_frees_no_object_that_is_in_use_again(pools: Any) -> None:
    """A second recoverer's pin did not protect the dead client's journal once the first was
    done."""
    pool = pools()
    slow, quick, owner = pools.keep(WatchedPool.open(pool.url)), pools.again(pool), pool
    (store,) = stores(owner)
    store.put(KEY, OLD)
    (reference,) = pair_references(pool)
    dies(pool, lambda dying: stores(dying)[0].delete(KEY), CutOffPool.open)
    assert not pool.heap.used(reference)
    never_sweeps(owner)
    owner.allocator.replenish(0, SIZE)  # sees that the object was freed

    def settling(verb: str, address: int) -> None:
        if verb == "load" and address >> NODE_SHIFT != CONTROL_NODE:
            slow.endpoint.before = None
            assert len(quick.recover()["clients"]) == 1
            owner.allocator.replenish(0, SIZE)
            store.put(b"live", OLD)

    slow.endpoint.before = settling
    slow.recover()
    assert slow.endpoint.before is None
    store.check()
    assert pool.audit()["leaked"] == 0


def test_late_recoverer_frees_no_tails_of_another_span(pools: Any) -> None:
    """The words of a span's tails did not tell it from a later span at the same place."""
    pool = pools()
    slow, quick = pools.again(pool), pools.again(pool)
    (store,) = stores(pool)
    size = 9 * pool.layout.block_size

    def make_and_delete(dying: Any) -> None:
        (of_dying,) = stores(dying)
        of_dying.put(KEY, bytes(size))
        of_dying.delete(KEY)

    dies(pool, make_and_delete)
    never_sweeps(pool)
    words = pool.blocks.words(0).tolist()
    (first,) = [block for block, word in enumerate(words) if word >> 60 == LARGE]
    stamp = quick.grace.close_period()

    def overtaken() -> None:
        assert quick.blocks.release_span(0, first, words[first], stamp) == 10
        store.put(b"live", b"L" * size)

    meanwhile(slow.blocks, "tails", overtaken, first=False)
    slow.recover()
    now = pool.blocks.words(0).tolist()[first : first + 10]
    assert [word >> 60 for word in now] == [LARGE, *[TAIL] * 9]
    assert now[0] == block_word(LARGE, pool.client_id)
    assert store.get(b"live") == b"L" * size
    assert pool.audit()["leaked"] == 0


class TellingLock:
    """A lock that tells when a client waits for it, and when it was left a second time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waited_for = threading.Event()
        self.left_twice = threading.Event()
        self.left = 0

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            self.waited_for.set()
            self.lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self.left += 1
        self.lock.release()
        if self.left == 2:
            self.left_twice.set()


def test_threads_of_a_forked_child_stay_apart_while_it_joins(pools: Any) -> None:
    """The second thread that adopted the handle let itself in beside the first one."""
    pool = pools()

    def first_operation() -> str:
        lock = TellingLock()
        pool_module._identity_lock = lock
        second = threading.Thread(target=lambda: pool.client_id)
        join = pool.membership.join

        def slowly() -> None:
            second.start()
            assert lock.waited_for.wait(30)
            join()

        def inside() -> str:
            assert lock.left_twice.wait(30)
            try:
                return f"let in again as {pool.client_id}"
            except limpet.ReentrantUse:
                return "kept out"

        pool.membership.join = slowly
        found = pool.exclusively(inside)
        second.join()
        return str(found)

    assert gather(first_operation) == ["kept out"]


def test_interrupted_release_of_a_block_leaves_it_to_others(pools: Any) -> None:
    """A client interrupted when it had given back a block went on using it."""
    pool = pools()
    one, two = pools.again(pool), pools.again(pool)
    of_one, of_two = stores(one, two)
    of_one.put(KEY, OLD)
    of_one.delete(KEY)

    def interrupt() -> None:
        raise Interrupted

    move = one.blocks.move
    meanwhile(one.blocks, "move", interrupt, first=False)
    with pytest.raises(Interrupted):
        one.exclusively(lambda: one.allocator.relief.make_room(1, 0, {}))
    one.blocks.move = move
    of_two.put(b"two", OLD)
    of_one.put(b"one", NEW)
    assert of_two.get(b"two") == OLD
    of_two.check()


def test_damaged_journal_of_the_dead_does_not_stop_recovery(pools: Any) -> None:
    """An impossible reference in a dead client's journal killed or stopped the recoverer."""
    pool = pools(clients=8)
    for reference in (200 << 48 | 0x7F000, 1 << 48 | 16, 1 << 48 | 5 << 40 | 0x7F000):

        def take(dying: Any, reference: int = reference) -> None:
            dying.client.enter()
            dying.client.log(reference, 0)

        dies(pool, take)
        gather(pool.recover)  # in a child, in case it does not live through it
        pool.recover()
        assert len(pool.clients()) == 1
    assert pool.audit()["leaked"] == 0


def test_damaged_class_of_a_block_does_not_stop_recovery_and_audit(pools: Any) -> None:
    """A block of a size class that there is not ended the process that looked at it."""
    pool = pools()
    word = pool.heap.table_word(0, 3)
    assert pool.endpoint.load(word) >> 60 == FREE

    def damage(dying: Any) -> None:
        dying.endpoint.store(word, block_word(SLAB, dying.client_id, 200))

    dies(pool, damage)
    gather(pool.recover)
    (leaked,) = gather(lambda: pool.audit()["leaked"])
    assert leaked == pool.layout.block_size
    pool.endpoint.store(word, 0)


def test_failed_join_gives_its_slot_back(pools: Any, monkeypatch: Any) -> None:
    """A client that failed to join, because recovery raised, kept its slot."""
    pool = pools(clients=4)

    def fail(self: Any) -> None:
        raise limpet.PoolCorrupt("cannot recover")

    with monkeypatch.context() as patch:
        patch.setattr(Membership, "sweep", fail)
        for _ in range(6):
            with pytest.raises(limpet.PoolCorrupt, match="cannot recover"):
                limpet.open(pool.url)
    assert len(pool.clients()) == 1
    pools.again(pool)


@pytest.mark.skipif(BUILD == "pure", reason="documented: an interrupted `begin` leaves it locked")
def test_handle_is_usable_after_an_exception_at_any_line(pools: Any) -> None:
    """A signal handler that raised between `begin` and `try` left the handle locked for good."""
    pool = pools()
    here = str(Path(pool_module.__file__).parent)

    def clients_interrupted_at(line: int) -> bool:
        count = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal count
            if not frame.f_code.co_filename.startswith(here):
                return None
            if event == "line":
                count += 1
                if count == line:
                    raise Interrupted
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            pool.clients()
        except Interrupted:
            return True
        finally:
            sys.settrace(before)
        return False

    line = 1
    while clients_interrupted_at(line):
        assert pool.client_id, line
        line += 1
    assert line > 10


def test_empty_blocks_of_nobody_serve_every_size_class(pools: Any) -> None:
    """Blocks that a client left behind, emptied since, were lost to other sizes."""
    pool = pools(node_size="256KiB")
    other = pools.again(pool)
    store, leaving = stores(pool, other)
    keys = [b"%d" % number for number in range(200)]
    with pytest.raises(limpet.StoreFull):
        leaving.put_many((key, bytes(2000)) for key in keys)
    keys = [key for key in keys if key in leaving]
    other.close()
    for key in keys:
        store.delete(key)
    store.put(b"small", bytes(100))
    store.put(b"large", bytes(30_000))
    assert pool.audit()["leaked"] == 0


def test_journal_left_by_an_interrupted_operation_is_settled_by_the_next(pools: Any) -> None:
    """Objects of an interrupted operation in the client journal were counted with those of the
    next operation."""
    pool = pools.keep(WatchedPool.create(pools.url(), nodes=1, node_size="2MiB"))
    (store,) = stores(pool)
    store.put(b"warm", OLD)

    left = [Interrupted, Interrupted, Interrupted]
    """A delete frees the old object; the end of an operation that is cut off tries twice more."""

    def interrupt(verb: str, address: int) -> None:
        if verb == "mcas" and left:
            raise left.pop()

    pool.endpoint.before = interrupt
    with pytest.raises(Interrupted):
        store.delete(b"warm")
    assert not left
    pool.endpoint.before = None
    assert pool.client.held == 1
    store.put(KEY, OLD)
    assert pool.client.held == 0
    with pinned(pool):
        assert pool.endpoint.load(pool.client.slot + CLIENT_JOURNAL) == 0
    store.check()
    assert store.get(KEY) == OLD
    audit = pool.audit()
    assert audit["leaked"] == audit["held"] == 0
