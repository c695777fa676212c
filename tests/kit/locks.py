"""Simulated clients of one ticket lock: schedules with sleeps, crashes and stalls, from a seed.

As in the explorer, clients are greenlets, and hand over before each verb
(limpet.shm.endpoint.simulated); time is simulated. Here they can also sleep in the kernel: until
they are woken, or in vain. A client may die before it wakes another one. queues.py has the
same for queues.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from typing import Any, Final

from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.explore.sim_pools import RestorablePool, SimulatedPool
from limpet.shm.clients.simulated_processes import SimulatedProcesses
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.simulated import (
    PAUSE,
    PID_FIRST,
    WAIT,
    Crashed,
    SimulatedEndpoint,
    at_once,
)
from limpet.shm.endpoint.slots import LIVE, client_id, state_word
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.lock.ticket_layout import HEAD, HOLDER
from limpet.stores.channels.lock.ticket_lock import TicketLock, ticket_lock_size

LEASE_US: Final = 50_000
VERB_S: Final = 2e-5
PAUSE_S: Final = 4e-5
STEPS_MAX: Final = 30_000
PLACES: Final = 4
VAIN_S: Final = 3e-3
LONG: Final = 60
"""Pauses in which the lock is held: so long that others fall asleep, or nearly."""
PROTECTED: Final = 256
"""Offset of the word that the lock protects."""

_numbers = itertools.count()


class SleepyEndpoint(SimulatedEndpoint):
    """Its `futex_wait` sleeps, until its `futex_wake`, or until the time is over."""

    run: Run | None = None

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self.pause(0)
        if self.run is None or super().load(addr) & 0xFFFF_FFFF != expected:
            return 1
        return self.run.sleep(self.number, addr, timeout_us)

    def futex_wake(self, addr: int, count: int) -> int:
        if self.run is None:
            return 0
        self.pause(0)
        return self.run.wake(self.number, addr, count)


class SleepyPool(SimulatedPool):
    endpoint_class = SleepyEndpoint


class Player:
    """A client, and where it is in the run."""

    def __init__(self, number: int, pool: Any) -> None:
        self.number = number
        self.pool = pool
        self.channel: Any = None
        self.lock: Any = None
        self.identity = (0, 0, 0)
        self.begin()

    def begin(self) -> None:
        self.greenlet: Any = None
        self.steps = 0
        self.dead = self.finished = False
        self.stalled_until = 0
        self.asleep = 0
        self.woken = False
        self.until = 0.0


class LockStage:
    """A pool with `clients` simulated clients of one lock. A context manager."""

    def __init__(self, clients: int, kind: type[Any] = TicketLock, overtaking: bool = True) -> None:
        self.kind = kind
        self.clock = 1.0
        self.run: Run | None = None
        self.processes = SimulatedProcesses(lambda pid: None)
        url = f"shm://test-lock-{os.getpid()}-{next(_numbers)}"
        self.setup_client: Any = RestorablePool.create(
            url, nodes=1, node_size=1 << 20, block_size=16 << 10, clients=clients + 2,
            lease=LEASE_US / 1e6,
        )  # fmt: skip
        pools = [SleepyPool.beside(self.setup_client) for _ in range(clients)]
        destroy(url)
        self.players = [Player(number, pool) for number, pool in enumerate(pools)]
        for pool in (self.setup_client, *pools):
            pool.membership.watcher = self.processes
            pool.membership.now = lambda: self.clock
        self.overtaking = overtaking
        self.channel = self._open(self.setup_client)
        for player in self.players:
            pool = player.pool
            player.channel = self._open(pool)
            pool.endpoint.number = player.number
            incarnation = pool.client.word & (1 << 36) - 1
            word = state_word(LIVE, PID_FIRST + player.number, incarnation)
            self.setup_client.endpoint.store(pool.client.slot, word)
            slot = pool.client.ident >> 36
            player.identity = (client_id(slot, word), pool.client.slot, word)
        client = self.setup_client.client
        self._setup_identity = (client.ident, client.slot, client.word)
        self._image = self.setup_client.image()

    def _open(self, pool: Any) -> Any:
        """The channel, by this handle of the pool."""
        assert ticket_lock_size(PLACES) <= PROTECTED
        return Channel(pool.channels, "lock", size=PROTECTED + 8, kind="test")

    def _equip(self, player: Player) -> None:
        player.lock = self.kind(player.channel, player.channel.address, PLACES, self.overtaking)

    def reset(self) -> None:
        self.setup_client.restore(self._image)
        self.setup_client.client.assume(*self._setup_identity)
        self.processes.gone.clear()
        for player in self.players:
            player.begin()
            player.pool.client.assume(*player.identity)
            player.pool.endpoint.end()
            player.pool.membership.forget()
            self._equip(player)

    def __enter__(self) -> LockStage:
        return self

    def __exit__(self, *exception: object) -> None:
        self.reset()
        for player in reversed(self.players):
            player.pool.close()
        self.setup_client.close()


class Run:
    """One run: each client takes the lock `times` times, and counts up what it protects.

    `crashes`, `stalls`: step of each client (number) at which it dies, or stands still; a stall is
    so many steps of others long. `timeouts`: each client gives up after so many s, and tries again.
    `failure`: what was wrong, or "".
    """

    def __init__(
        self,
        stage: LockStage,
        seed: int,
        *,
        times: int = 3,
        crashes: dict[int, int] | None = None,
        stalls: dict[int, tuple[int, int]] | None = None,
        timeout: float = -1.0,
    ) -> None:
        self.stage = stage
        self.rng = random.Random(seed)
        self.restless = self.rng.choice((0.2, 0.8))
        self.times = times
        self.crashes = crashes or {}
        self.stalls = stalls or {}
        self.timeout = timeout
        self.players = stage.players
        self.steps = 0
        self.failure = ""
        self.holder: Player | None = None
        self.done = 0
        self.in_vain = 0
        """Sleeps of the head of the queue that no client ended though the lock was free for
        VAIN_S."""
        self._held = 0.0
        self.order: list[int] = []
        """The attribute `drawn` of the locks of the clients that got the lock."""
        self._hub = getcurrent()

    # ---- the scheduler --------------------------------------------------------------------------

    def turn(self, endpoint: Any, verb: str, addr: int, words: int) -> int:
        player = self.players[endpoint.number]
        if player.dead:
            raise Crashed
        if verb is WAIT:
            return words
        self.steps += 1
        player.steps += 1
        self.stage.clock += PAUSE_S if verb is PAUSE else VERB_S
        self._look()
        if self.crashes.get(player.number) == player.steps:
            self.crash(player)
        stall = self.stalls.get(player.number)
        if stall is not None and stall[0] == player.steps:
            player.stalled_until = self.steps + stall[1]
        if self.steps > STEPS_MAX:
            self.failure = self.failure or "no end: a client waits for ever"
        if (
            self.failure
            or verb is PAUSE
            or self.rng.random() < self.restless
            or not self._able(player)
        ):
            self._hub.switch()
        if player.dead:
            raise Crashed
        return words

    def _able(self, player: Player) -> bool:
        if player.dead or player.finished or player.stalled_until > self.steps:
            return False
        return not player.asleep or player.woken or self.stage.clock >= player.until

    def crash(self, player: Player) -> None:
        player.dead = True
        self.stage.processes.gone.add(PID_FIRST + player.number)

    def sleep(self, number: int, addr: int, timeout_us: int) -> int:
        player = self.players[number]
        player.asleep, player.woken = addr, False
        player.until = self.stage.clock + timeout_us / 1e6
        self._hub.switch()
        player.asleep = 0
        if player.dead:
            raise Crashed
        if not player.woken and self._vainly(addr):
            self.in_vain += 1
        return int(player.woken)

    def wake(self, number: int, addr: int, count: int) -> int:
        sleepers = [p for p in self.players if p.asleep == addr and not p.woken][:count]
        for player in sleepers:
            player.woken = True
        return len(sleepers)

    def _look(self) -> None:
        lock = self.players[0].lock
        if self.stage.setup_client.endpoint.load(lock.address) & HOLDER:
            self._held = self.stage.clock

    def _vainly(self, addr: int) -> bool:
        """Whether a client that slept there until its timeout could have gone on long ago."""
        if self.stage.clock - self._held <= VAIN_S:
            return False
        lock = self.players[0].lock
        ticket = self.stage.setup_client.endpoint.load(lock.address + HEAD) + 1
        return bool(addr == lock.address + 16 + 8 * (ticket % PLACES))

    # ---- the players ----------------------------------------------------------------------------

    def _life(self, player: Player) -> None:
        try:
            for _ in range(self.times):
                while not player.lock.acquire(self.timeout):
                    pass
                self._work(player)
        except Crashed:
            pass
        except Exception as error:
            self.failure = self.failure or f"client {player.number}: {error!r}"
        finally:
            player.finished = True

    def _work(self, player: Player) -> None:
        """Count the word up, without an atomic verb, that the lock protects."""
        if self.holder is not None:
            if not self.holder.dead:
                self.failure = self.failure or "two clients hold the lock"
            elif not player.lock.inherited:
                self.failure = self.failure or "the last holder died, and no client is told"
        self.holder = player
        self.order.append(getattr(player.lock, "drawn", 0))
        endpoint = player.pool.endpoint
        at = player.channel.address + PROTECTED
        counted = endpoint.load(at)
        for _ in range(self.rng.choice((0, self.rng.randrange(LONG)))):
            endpoint.pause(0)
        endpoint.store(at, counted + 1)
        self.done += 1
        self.holder = None
        player.lock.release()

    # ---- the run --------------------------------------------------------------------------------

    def go(self) -> Run:
        stage = self.stage
        stage.reset()
        for player in self.players:
            player.pool.endpoint.turn = self.turn
            player.pool.endpoint.run = self
            player.greenlet = greenlet(functools.partial(self._life, player))
        while not self.failure:
            living = [p for p in self.players if not (p.dead or p.finished)]
            able = [p for p in living if self._able(p)]
            if self._over():
                break
            if able:
                self.rng.choice(able).greenlet.switch()
            elif living:
                self.steps += 1
                self.stage.clock += PAUSE_S  # all sleep, or stand still
            else:
                break
        for player in self.players:
            if player.greenlet:
                player.dead = True
                player.greenlet.throw(Crashed)
            player.pool.endpoint.turn = at_once
            player.pool.endpoint.run = None
        self.failure = self.failure or self._wrong()
        return self

    def _over(self) -> bool:
        """Whether the clients that are left would wait for ever, and should."""
        return False

    def _wrong(self) -> str:
        """The fault at the end; "": none."""
        counted = self.stage.setup_client.endpoint.load(self.stage.channel.address + PROTECTED)
        return "" if counted == self.done else f"{counted} was counted, {self.done} were done"
