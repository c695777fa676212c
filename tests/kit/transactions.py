"""Scenes of an `rtx-sherman` store step by step: puppets of it, whose clocks stand still.

Time passes only by pauses of waiting clients, and by `Clients.pass_lease`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kit.processes import gather
from kit.puppets import (
    Puppet,
    PuppetEndpoint,
    PuppetPool,
    Testbed,
    Where,
    kills_at,
    verb_on_address,
)
from limpet.shm.endpoint.slots import START_US
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.transactions.layout import INIT, LOCKED, STATE, STATE_MASK, TX_LOG

DRIFT_US: Final = 10_000
TREE: Final = {
    "capacity": 64, "key_size": 20, "value_size": 40, "node_size": 384, "drift_us": DRIFT_US,
    "each_us": 100,
}  # fmt: skip
OLD, NEW, LATER = b"old", b"new", b"later"
PAUSES_MAX: Final = 3000
"""Of all clients together, in one scene."""
LOOKS_MAX: Final = 300
"""A client that looks at a lock so often waits for ever."""


class StillEndpoint(PuppetEndpoint):
    """Its clock goes on when a client pauses."""

    now_us = 1 << 40
    pauses = 0

    def microseconds(self) -> int:
        return START_US + StillEndpoint.now_us

    def pause(self, attempt: int) -> int:
        StillEndpoint.now_us += 500
        StillEndpoint.pauses += 1
        assert StillEndpoint.pauses < PAUSES_MAX, "a client waits for ever"
        return 0


class StillPool(PuppetPool):
    endpoint_class = StillEndpoint


class Actor(Puppet):
    """A puppet with such a clock."""

    pool_class = StillPool


class StillTestbed(Testbed):
    """Its clients have such a clock."""

    puppet_class = Actor

    def __init__(self, pools: Any, puppets: int, *given: Any, **parameters: Any) -> None:
        StillEndpoint.pauses = 0
        super().__init__(pools, puppets, *given, **parameters)

    def decides(self, actor: Puppet) -> Where:
        return deciding(self.store, actor.pool)

    def log_of(self, actor: Puppet) -> int:
        return log_of(self.store, actor.pool)


class Clients(StillTestbed):
    """A tree with three leaves, x, y and z, and of each one key, kx, ky and kz.

    x, y and z are the objects of the leaves; their locks are taken in this order.
    """

    kind = "rtx-sherman"
    dies = True

    def __init__(self, pools: Any, puppets: int, **parameters: Any) -> None:
        super().__init__(pools, puppets, **{**TREE, **parameters})
        # Locks are taken in the order of addresses, so that is the order of these.
        found = sorted((self.at(key), key) for key in (b"x0", b"y0", b"z0"))
        (self.x, self.kx), (self.y, self.ky), (self.z, self.kz) = found
        assert self.x < self.y < self.z
        self.beside = self.kx[:1] + b"1"
        """Another key of x."""
        for key in (self.kx, self.ky, self.kz):
            self.store.put(key, OLD)

    def prepare(self) -> None:
        # in descending order, so that leaves are split in the middle
        for letter in b"zyx":
            for number in range(3, -1, -1):
                self.store.put(b"%c%d" % (letter, number), OLD.ljust(36))

    def at(self, key: bytes) -> int:
        """The object of the leaf that a key is in."""
        self.store.get(key)
        return int(self.store.leaf.at)

    def value(self, key: bytes) -> bytes | None:
        found: bytes | None = self.store.get(key)
        return found

    def put_at(self, address: int) -> bool:
        """Have the data of z be at this address, of which no client thinks any more.

        And it is such that, taken for a log, it would be one that no client has decided.
        """
        for number, actor in enumerate(self.puppets):
            for turn in range(300):
                actor.store.put(self.kz, b"%d %d" % (number, turn))
                if self.data(self.z) == address and self.load(address + STATE) & STATE_MASK == INIT:
                    return True
        return False

    def is_locked(self, at: int) -> bool:
        return bool(self.load(at) & LOCKED)

    def data(self, at: int) -> int:
        """Address of the data of an object."""
        return self.load(at + POINTER) & ADDRESS_MASK

    def keys_of(self, key: bytes) -> list[bytes]:
        """The keys with the same letter."""
        return [key[:1] + b"%d" % number for number in range(4)]

    def put_by_another_process(self, key: bytes, value: bytes) -> int:
        """One that comes, puts, and goes; its slot."""

        def client() -> int:
            with StillPool.open(self.url) as pool:
                pool.store("rtx-sherman", name="test").put(key, value)
                return int(pool.client.slot)

        return int(gather(client)[0])

    @staticmethod
    def pass_lease() -> None:
        """Let so much time pass that all leases are over."""
        StillEndpoint.now_us += 20 * DRIFT_US

    def die(self, where: Where, work: Callable[[Puppet], object]) -> None:
        """A client begins `work`, and dies just before that verb."""

        def warm(store: Any) -> None:
            store.get(b"as another process")

        super().die(where, lambda store: work(self.remotely_fenced), warm)

    def die_after_abort(self) -> None:
        """A client dies that has locked x and, after others have aborted its transaction, y."""

        def work(actor: Actor) -> None:
            locks = verb_on_address("cas", self.y)

            def before(verb: str, address: int) -> None:
                if locks(verb, address):
                    actor.pool.endpoint.before = kills_at(deciding(self.store, actor.pool))
                    self.pass_lease()
                    with StillPool.open(self.url) as pool:
                        pool.store("rtx-sherman", name="test").put(self.kx, LATER)

            actor.pool.endpoint.before = before
            put_all(actor, NEW, self.kx, self.ky)

        self.die(lambda verb, address: False, work)

    def ends(self, actor: Actor, work: Callable[[], Any], at: int) -> bool:
        """Whether a puppet's work ends, and does not look at this lock for ever."""
        return actor.begin(work, verb_on_address("load", at, LOOKS_MAX))

    def sound(self) -> None:
        """Nothing is wrong, leaked or locked."""
        super().sound()
        for at in (self.x, self.y, self.z):
            assert not self.is_locked(at), f"{at:#x} is locked"


def log_of(beside: Any, pool: Any) -> int:
    """Address of the present log of a pool's client, as another client's store reads it; or 0."""
    return int(beside.endpoint.load(int(pool.client.slot) + TX_LOG)) & ADDRESS_MASK


def deciding(beside: Any, pool: Any) -> Where:
    """When the pool's client is about to decide its transaction; read by another client's store."""

    def there(verb: str, address: int) -> bool:
        log = log_of(beside, pool) if verb == "cas" else 0
        return log != 0 and address == log + STATE

    return there


def look_after(store: Any, at: int) -> None:
    """Repair the lock of an object, as a waiting client does now and then."""
    store.leaf.at = at
    store.await_holder(0, True)


def put_all(actor: Any, value: bytes, *keys: bytes) -> None:
    """A transaction that gives several keys one value. `actor` has a `pool` and a `store`."""

    def work(tx: Any) -> None:
        for key in keys:
            tx.put(actor.store, key, value)

    actor.pool.transaction(work)
