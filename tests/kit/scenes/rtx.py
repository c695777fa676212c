"""Scenes of rTX: its traps, which variants put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import limpet
from kit.mutants.rtx import (
    ANY_GUESS,
    ANYBODYS,
    COPIED_TWICE,
    GONE_IS_EMPTY,
    LOCK_OF_DONE,
    LOCKED_BY_DEAD,
    MILLISECOND,
    NO_FENCES,
    NO_GRACE,
    NODE_FIRST,
    NOT_MOVED,
    NOT_PERSISTED,
    NOT_VALIDATED,
    NOTHING_TO_CHANGE,
    ONE_BUFFER,
    POINTER_AFTER_LOCK,
    READS_DECIDED,
    READS_TORN,
    RENEWED_UNSEEN,
    SAME_STATE_WORD,
    SIBLINGS_ONLY,
)
from kit.puppets import after, verb_on_address
from kit.transactions import LATER, NEW, OLD, Actor, Clients, look_after, put_all
from limpet.fault.matrix.testbed import look_away
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.transactions.layout import COUNT, OBJECT_SIZE, STATE, TX_LOG

# ---- R1: no lock state comes again ---------------------------------------------------------------


def _is_read_while(clients: Clients, write: Callable[[bytes], None]) -> None:
    """A transaction reads x and y; meanwhile both are changed, x until its data is where it was."""
    (reader,) = clients.puppets
    first = clients.value(clients.kx)
    pointer = clients.load(clients.x + POINTER)
    values = [b""]

    def change() -> None:
        for number in range(400):
            values[0] = b"%d" % number
            write(values[0])
            if clients.load(clients.x + POINTER) == pointer:
                break
        assert clients.load(clients.x + POINTER) == pointer
        clients.store.put(clients.ky, LATER)

    def work(tx: Any) -> list[bytes]:
        x = tx.get(reader.store, clients.kx)
        if not values[0]:
            change()
        return [x, tx.get(reader.store, clients.ky)]

    reader.begin(lambda: reader.pool.transaction(work))
    assert reader.result in ([first, OLD], [values[0], LATER])
    clients.sound()


def _writer_is_fast(pools: Any) -> None:
    """It does many operations while the clock stands still."""
    clients = Clients(pools, 1)
    _is_read_while(clients, lambda value: clients.store.put(clients.kx, value))


def _writer_is_restarted(pools: Any) -> None:
    """Other processes have its slot, one after the other, and the clock stands still."""
    clients = Clients(pools, 1)
    slots = {clients.put_by_another_process(clients.kx, NEW)}
    _is_read_while(
        clients, lambda value: slots.add(clients.put_by_another_process(clients.kx, value))
    )
    assert len(slots) == 1


# ---- guesses of pointers -------------------------------------------------------------------------


def _leaf_is_written_behind_a_guess(pools: Any) -> None:
    """A reader remembers the pointer of a leaf; then another client writes the leaf."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    reader.begin(lambda: reader.store.get(clients.kx))
    clients.store.put(clients.kx, NEW)
    reader.begin(lambda: reader.store.get(clients.kx))
    assert reader.result == NEW
    clients.sound()


def _leaf_comes_back_to_where_it_was_guessed(pools: Any) -> None:
    """The memory at a pointer that a reader guesses is vacant when it begins, and is linked again
    before it reads the object."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    reader.begin(lambda: reader.store.get(clients.kx))
    pointer = clients.load(clients.x + POINTER)

    def put_until_back() -> int:
        """Put until the memory is in use again; how many puts it took."""
        for number in range(1, 1000):
            clients.store.put(clients.kx, b"%d" % number)
            if clients.load(clients.x + POINTER) == pointer:
                return number
        raise AssertionError("the memory was never used again")

    put_until_back()
    for _ in range(put_until_back() - 1):
        clients.store.put(clients.kx, NEW)
    assert not reader.begin(
        lambda: reader.store.get(clients.kx), verb_on_address("load", clients.x)
    )
    last = b"%d" % put_until_back()
    assert reader.go()
    assert reader.result == last
    clients.sound()


# ---- R2: no lock stands for ever -----------------------------------------------------------------


def _owner_locks_after_it_was_aborted(pools: Any) -> None:
    """And stands still once more; no client waits for it."""
    clients = Clients(pools, 2)
    owner, other = clients.puppets
    both = clients.kx, clients.ky
    owner.begin(lambda: put_all(owner, NEW, *both), verb_on_address("cas", clients.y))
    clients.pass_lease()
    clients.store.put(clients.kx, LATER)
    owner.go(clients.decides(owner))
    assert clients.is_locked(clients.y)
    ended = clients.ends(other, lambda: other.store.put(clients.ky, LATER), clients.y)
    assert owner.go()
    assert ended or other.go()
    assert ended, "it waited for a transaction that is over"
    assert clients.value(clients.kx) == NEW
    clients.sound()


def _owner_dies_with_a_lock_of_an_aborted_transaction(pools: Any) -> None:
    """It took that after others had aborted the transaction; its log's memory is used again."""
    clients = Clients(pools, 9)  # they have their slots, so no client takes the dead one's
    waiting = clients.puppets[0]
    look_away(waiting.pool)
    clients.die_after_abort()
    assert clients.is_locked(clients.y)
    (slot,) = clients.dead()
    log = clients.load(slot_address(slot) + TX_LOG) & ADDRESS_MASK
    clients.pool.recover()
    assert clients.put_at(log), "the log's memory was not used again"
    ended = clients.ends(waiting, lambda: waiting.store.put(clients.ky, NEW), clients.y)
    assert ended, "no client releases the lock"
    assert clients.value(clients.ky) == NEW
    clients.sound()


# ---- R3: the log is that of the lock -------------------------------------------------------------


def _next_log_is_written_under_a_repairer(pools: Any) -> None:
    """It has read the header of a log, and goes on to the entries when its owner does the next."""
    clients = Clients(pools, 2)
    owner, late = clients.puppets
    owner.begin(
        lambda: put_all(owner, NEW, clients.kx, clients.ky),
        verb_on_address("cas", clients.x + POINTER),
    )
    log = clients.log_of(owner)
    clients.pass_lease()
    late.begin(lambda: look_after(late.store, clients.x), verb_on_address("load", log + COUNT))
    assert owner.go()
    undecided: list[int] = []

    def about_to_decide(verb: str, address: int) -> bool:
        undecided.append(address)
        return verb == "cas" and address == clients.log_of(owner) + STATE

    owner.begin(lambda: put_all(owner, LATER, clients.ky, clients.kz), about_to_decide)
    assert late.go()
    clients.pass_lease()
    assert clients.value(clients.kz) == OLD, "what no client has committed is there"
    assert clients.value(clients.ky) == NEW
    assert owner.go()
    clients.sound()


# ---- R4: what is late hits nothing ---------------------------------------------------------------


def _repairer_closes_a_log_late(pools: Any) -> None:
    """It has carried out what a log says, whose owner is in the midst of the next transaction."""
    clients = Clients(pools, 2)
    owner, late = clients.puppets
    owner.begin(
        lambda: put_all(owner, NEW, clients.kx, clients.ky),
        verb_on_address("cas", clients.x + POINTER),
    )
    log = clients.log_of(owner)
    clients.pass_lease()
    closes = verb_on_address("cas", log + STATE, 2)
    assert not late.begin(lambda: look_after(late.store, clients.x), closes)
    assert owner.go()
    half = clients.ky, clients.kz
    installs = verb_on_address("cas", clients.z + POINTER)
    assert not owner.begin(lambda: put_all(owner, LATER, *half), installs)
    assert late.go()
    clients.pass_lease()
    assert [clients.value(key) for key in half] == [LATER, LATER], "half a transaction"
    assert owner.go()
    clients.sound()


# ---- R5, R6: a lock without a log ----------------------------------------------------------------


def _both_are_there(clients: Clients, owner: Actor) -> None:
    """After a transaction whose two installations were waited for."""
    assert owner.go()
    assert clients.value(clients.kx) == clients.value(clients.ky) == NEW, "half a transaction"
    clients.sound()


def _decides(clients: Clients, owner: Actor) -> None:
    """A transaction with a log is decided, and then stands still."""
    installs = verb_on_address("cas", clients.x + POINTER)
    assert not owner.begin(lambda: put_all(owner, NEW, clients.kx, clients.ky), installs)


def _owner_wakes_after_the_repair(pools: Any) -> None:
    """It has a lock without a log, and is about to install, as another client is by then."""
    clients = Clients(pools, 2)
    still, owner = clients.puppets
    installs = verb_on_address("cas", clients.x + POINTER)
    still.begin(lambda: still.store.put(clients.beside, NEW), installs)
    clients.pass_lease()
    look_after(clients.store, clients.x)
    _decides(clients, owner)
    assert still.go()
    assert clients.value(clients.beside) == NEW
    _both_are_there(clients, owner)


def _repairer_wakes_after_the_repair(pools: Any) -> None:
    """It has seen the lock, and not yet the pointer."""
    clients = Clients(pools, 3)
    still, late, owner = clients.puppets
    late.store.put(clients.kz, NEW)  # it has memory
    installs = verb_on_address("cas", clients.x + POINTER)
    still.begin(lambda: still.store.put(clients.beside, NEW), installs)
    clients.pass_lease()
    looked = after(("load", clients.x), then=("load", clients.x + POINTER))
    late.begin(lambda: look_after(late.store, clients.x), looked)
    look_after(clients.store, clients.x)
    clients.store.put(clients.kx, LATER)
    _decides(clients, owner)
    assert late.go()
    assert still.go()
    _both_are_there(clients, owner)


def _two_repair(pools: Any) -> None:
    """The second one while the first has copied the data, and not released the lock."""
    clients = Clients(pools, 4)
    still, first, second, owner = clients.puppets
    installs = functools.partial(verb_on_address, "cas", clients.x + POINTER)
    still.begin(lambda: still.store.put(clients.beside, NEW), installs())
    clients.pass_lease()
    first.begin(lambda: look_after(first.store, clients.x), verb_on_address("cas", clients.x))
    ended = second.begin(lambda: look_after(second.store, clients.x), installs())
    assert first.go()
    _decides(clients, owner)
    assert ended or second.go()
    assert still.go()
    _both_are_there(clients, owner)


def _second_recoverer_comes_late(pools: Any) -> None:
    """It stands still after it has seen the dead client's lock, until all is long over."""
    clients = Clients(pools, 2)
    late, owner = clients.puppets
    installs = verb_on_address("cas", clients.x + POINTER)
    clients.die(installs, lambda actor: actor.store.put(clients.kx, LATER))
    assert clients.is_locked(clients.x)
    looked = after(("load", clients.x), then=("load", clients.x + POINTER))
    late.begin(late.pool.recover, looked)
    clients.pool.recover()
    clients.store.put(clients.kx, OLD)
    _decides(clients, owner)
    assert late.go()
    _both_are_there(clients, owner)


def _owner_has_nothing_to_change(pools: Any) -> None:
    """It has locked the leaf early, for a key that is gone; its lease is over."""
    clients = Clients(pools, 3)
    still, late, owner = clients.puppets
    still.store.get(clients.beside)
    clients.store.delete(clients.beside)
    still.begin(lambda: still.store.update(clients.beside, NEW), verb_on_address("cas", clients.x))
    still.go(lambda verb, address: True)
    assert clients.is_locked(clients.x)
    clients.pass_lease()
    installs = verb_on_address("cas", clients.x + POINTER)
    assert not late.begin(lambda: look_after(late.store, clients.x), installs)
    assert still.go()
    assert still.result is KeyError
    _decides(clients, owner)
    assert late.go()
    _both_are_there(clients, owner)


def _pointer_is_used_again(pools: Any) -> None:
    """For the same leaf, while one stands still that is about to change it from there."""
    clients = Clients(pools, 1)
    (still,) = clients.puppets
    pointer = clients.load(clients.x + POINTER)
    installs = verb_on_address("cas", clients.x + POINTER)
    still.begin(lambda: still.store.put(clients.beside, NEW), installs)
    clients.pass_lease()
    value = b""
    for number in range(400):
        value = b"%d" % number
        clients.store.put(clients.kx, value)
        if clients.load(clients.x + POINTER) == pointer:
            break
    assert still.go()
    assert clients.value(clients.kx) == value
    assert clients.value(clients.beside) == NEW
    clients.sound()


# ---- R8: readers ---------------------------------------------------------------------------------


def _reader_meets_half_a_transaction(pools: Any) -> None:
    """The first of two leaves is changed."""
    clients = Clients(pools, 2)
    owner, reader = clients.puppets
    both = clients.kx, clients.ky
    installs = verb_on_address("cas", clients.y + POINTER)
    owner.begin(lambda: put_all(owner, NEW, *both), installs)
    reader.begin(lambda: [reader.store.get(key) for key in both])
    assert owner.go()
    assert reader.result in ([OLD, OLD], [NEW, NEW])
    clients.sound()


def _leaf_is_split_behind_a_route(pools: Any) -> None:
    """A client knows the leaf from before; its upper half is in another one."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    keys = clients.keys_of(clients.kx)
    assert all(reader.store.get(key) is not None for key in keys)
    for number in range(8):
        clients.store.put(b"%s+%d" % (clients.kx, number), bytes(36))
    assert clients.at(keys[-1]) != clients.x
    assert all(reader.store.get(key) is not None for key in keys)
    clients.sound()


def _leaf_is_vacated_behind_a_route(pools: Any) -> None:
    """A client knows the leaf from before; what was left of it is in its neighbour."""
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    keys = clients.keys_of(b"y0")
    assert all(reader.store.get(key) is not None for key in keys)
    before = clients.at(keys[0])
    for key in (*keys, b"y9"):
        clients.store.put(key, NEW)
    clients.store.delete(b"y9")
    assert clients.at(keys[0]) != before
    assert {reader.store.get(key) for key in keys} == {NEW}
    clients.sound()


def _next_leaf_is_another_one(pools: Any) -> None:
    """Its object is vacated, and used again, between the looks at a leaf and at its sibling."""
    few = {"node_size": 1024, "key_size": 8, "value_size": 200}
    pool = pools(nodes=1, node_size="512KiB")
    store = pool.store("rtx-sherman", name="test", **few)
    keys = [b"%04d" % number for number in range(40)]
    for key in keys:
        store.put(key, bytes(200))
    slow = Actor(pools, pool.url, "rtx-sherman")
    list(slow.store.scan(keys[0], keys[3]))
    leaf = _leaf_of(store, keys[5])
    last = next(key for key in keys[5:] if _leaf_of(store, key) != leaf)
    following = _leaf_of(store, last)
    there = [key for key in keys if _leaf_of(store, key) == following]

    assert not slow.begin(lambda: list(slow.store.scan()), verb_on_address("load", following))
    for key in there:
        store.delete(key)
    assert is_vacant(store.endpoint.load(following + POINTER))
    _use_again(pools, store, following)
    assert slow.go()
    found = [key for key, _ in slow.result if len(key) == 4]
    assert found == [key for key in keys if key not in there]
    every = [key for key, _ in slow.result]
    assert every == sorted(set(every))
    assert not store.pool.audit()["leaked"]
    store.check()


def _leaf_of(store: Any, key: bytes) -> int:
    tree, at = store.trees.tree_of(key), store.tx_keys.busy_at
    return int(store.scans.at_leaf(tree, key, at))


def _use_again(pools: Any, store: Any, at: int) -> None:
    """Have leaves far behind split until this object is one of them. A client looks for a vacant
    one from a place on that its number says."""
    number = (at - int(store.trees.roots[0])) // OBJECT_SIZE
    for _ in range(2 * store.parameters.objects):
        pool = limpet.Pool.open(store.pool.url)
        if 0 < number - pool.client.ident % store.parameters.objects <= 4:
            break
        pool.close()
    other = pools.keep(pool).store(store.kind, name=store.name)
    for number in range(100):
        other.put(b"z%04d" % number, bytes(200))
        if not is_vacant(store.endpoint.load(at + POINTER)):
            return
    raise AssertionError("the object was not used again")


# ---- optimistic concurrency control --------------------------------------------------------------


def _what_was_read_is_changed_before_the_commit(pools: Any) -> None:
    clients = Clients(pools, 1)
    (actor,) = clients.puppets

    def work(tx: Any) -> None:
        tx.put(actor.store, clients.ky, tx.get(actor.store, clients.kx) + b"!")

    actor.begin(lambda: actor.pool.transaction(work), verb_on_address("cas", clients.y))
    clients.store.put(clients.kx, LATER)
    assert actor.go()
    assert clients.value(clients.ky) == LATER + b"!"
    clients.sound()


def _what_was_read_is_changed_while_more_is_read(pools: Any) -> None:
    clients = Clients(pools, 1)
    (reader,) = clients.puppets
    both = clients.kx, clients.ky
    seen: list[set[bytes]] = []

    def work(tx: Any) -> None:
        seen.append({tx.get(reader.store, key) for key in both})

    reader.begin(lambda: reader.pool.transaction(work), verb_on_address("load", clients.y))
    put_all(clients, NEW, *both)
    assert reader.go()
    assert seen[-1] == {NEW}
    assert all(len(values) == 1 for values in seen), "a function saw what never was"
    clients.sound()


STEPS: Final = (
    (MILLISECOND, _writer_is_fast),
    (NOT_PERSISTED, _writer_is_restarted),
    (LOCK_OF_DONE, _owner_locks_after_it_was_aborted),
    (LOCKED_BY_DEAD, _owner_dies_with_a_lock_of_an_aborted_transaction),
    (ONE_BUFFER, _next_log_is_written_under_a_repairer),
    (SAME_STATE_WORD, _repairer_closes_a_log_late),
    (ANYBODYS, _owner_wakes_after_the_repair),
    (NOT_MOVED, _owner_wakes_after_the_repair),
    (POINTER_AFTER_LOCK, _repairer_wakes_after_the_repair),
    (COPIED_TWICE, _two_repair),
    (POINTER_AFTER_LOCK, _second_recoverer_comes_late),
    (NOTHING_TO_CHANGE, _owner_has_nothing_to_change),
    (NO_GRACE, _pointer_is_used_again),
    (READS_DECIDED, _reader_meets_half_a_transaction),
    (ANY_GUESS, _leaf_is_written_behind_a_guess),
    (NODE_FIRST, _leaf_comes_back_to_where_it_was_guessed),
    (NO_FENCES, _leaf_is_split_behind_a_route),
    (GONE_IS_EMPTY, _leaf_is_vacated_behind_a_route),
    (SIBLINGS_ONLY, _next_leaf_is_another_one),
    (NOT_VALIDATED, _what_was_read_is_changed_before_the_commit),
    (READS_TORN, _what_was_read_is_changed_while_more_is_read),
    (RENEWED_UNSEEN, _what_was_read_is_changed_while_more_is_read),
    (RENEWED_UNSEEN, _what_was_read_is_changed_before_the_commit),
)
