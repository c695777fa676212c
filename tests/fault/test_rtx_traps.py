"""The traps of rTX put back: each variant fails, what ships does not."""

from __future__ import annotations

from typing import Any

from puppets import after, verb_on_address
from rtx_scenes import LATER, NEW, Clients, put_all

from limpet.shm.membership import slot_address
from limpet.shm.slots import TX_LOG
from limpet.shm.words import ADDRESS_MASK
from limpet.stores.rtx.fields import POINTER


def _second_recoverer_comes_late(pools: Any) -> None:
    """It stands still after it has seen the dead client's lock, until all is long over."""
    clients = Clients(pools, 2)
    late, owner = clients.puppets
    installs = verb_on_address("cas", clients.x + POINTER)
    clients.die(installs, lambda actor: actor.store.put(clients.kx, NEW))
    assert clients.is_locked(clients.x)
    looked = after(("load", clients.x), then=("load", clients.x + POINTER))
    late.begin(late.pool.recover, looked)
    clients.pool.recover()
    clients.store.put(clients.kx, LATER)
    # A transaction with a log is decided, and has both locks.
    both = clients.kx, clients.ky
    owner.begin(lambda: put_all(owner, NEW, *both), verb_on_address("cas", clients.x + POINTER))
    assert late.go()
    assert owner.go()
    assert [clients.value(key) for key in both] == [NEW, NEW], "half a transaction"
    clients.sound()


def _owner_dies_with_a_lock_of_an_aborted_transaction(pools: Any) -> None:
    """It took that after others had aborted the transaction; its log's memory is used again."""
    clients = Clients(pools, 9)  # they have their slots, so nobody takes the dead one's
    waiting = clients.puppets[0]
    waiting.stay_away()
    clients.die_after_abort()
    assert clients.is_locked(clients.y)
    (slot,) = clients.dead()
    log = clients.load(slot_address(slot) + TX_LOG) & ADDRESS_MASK
    clients.pool.recover()
    assert clients.put_at(log), "the log's memory was not used again"
    ended = clients.ends(waiting, lambda: waiting.store.put(clients.ky, NEW), clients.y)
    assert ended, "nobody releases the lock"
    assert clients.value(clients.ky) == NEW
    clients.sound()


def test_late(pools: Any) -> None:
    _second_recoverer_comes_late(pools)


def test_abort(pools: Any) -> None:
    _owner_dies_with_a_lock_of_an_aborted_transaction(pools)
