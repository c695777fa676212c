"""The stage of an exploration: a small pool, simulated clients on it, and single runs.

All clients live in this process. Each has a pool handle of its own on the same mapped segments, a
client slot of its own with a simulated pid, and runs its part of a program in a greenlet. The
founder, an ordinary client, prepares everything and inspects what is left. The pool's segments are
unlinked as soon as they are mapped, so nothing is left behind however the process ends.

A run starts from an image: all of the memory, and what each client knows privately of its blocks,
are put back as they were after the preparation. Each client then has two keys or so in a block of
few objects, and one free object: by the second write, memory is recycled.

Time on a stage is simulated: a verb takes about a microsecond, a pause a sixteenth of a lease.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent, greenlet

from limpet.fault.history import Record
from limpet.fault.linearizability import check
from limpet.fault.schedule import (
    CRASH,
    CUT,
    END,
    STALL,
    SWITCH,
    WAKE,
    Actions,
    Chooser,
    Point,
    Schedule,
)
from limpet.fault.sim_program import PRESENT, RECOVER, WRITES, Call, Program
from limpet.shm.allocator import Slab
from limpet.shm.epoch import NEVER
from limpet.shm.errors import KeyExists, LimpetError
from limpet.shm.membership import slot_address
from limpet.shm.pool import destroy
from limpet.shm.simulated import (
    PAUSE,
    PID_FIRST,
    WAIT,
    CachedEndpoint,
    Crashed,
    SimulatedEndpoint,
    SimulatedProcesses,
    Step,
    at_once,
)
from limpet.shm.slots import LIVE, client_id, state_word
from limpet.stores.pool import Pool

if TYPE_CHECKING:
    from typing_extensions import Self

NODE_SIZE: Final = 256 << 10
BLOCK_SIZE: Final = 16 << 10
VALUE_SIZE: Final = 3400
"""Four objects of such a pair fill a block, so that memory is scarce. With 40 it is not."""
OBJECTS: Final = 4
PARAMETERS: Final[dict[str, dict[str, Any]]] = {"race": {"capacity": 1}}
"""Parameters that make a kind's store as small as it can be, so that keys meet."""
LEASE_US: Final = 1_000
VERB_S: Final = 2.0**-20
PAUSE_S: Final = 2.0**-14
RUN_S: Final = 16.0
"""From the start of a run to that of the next: exact in binary, so that all runs are alike."""
INITIAL: Final = b"initial"
STEPS_MAX: Final = 20_000
"""A run that takes more steps than this does not end."""

_numbers = itertools.count()


Label = bytes | None


class StagePool(Pool):
    """A pool handle whose memory can be copied and put back."""

    def image(self) -> list[bytes]:
        """All of the memory."""
        return [segment.map[:] for segment in self._segments]

    def restore(self, image: list[bytes]) -> None:
        """Put all of the memory back as it was."""
        for segment, contents in zip(self._segments, image, strict=True):
            segment.map[:] = contents


class SimulatedPool(StagePool):
    """The pool handle of a simulated client."""

    endpoint_class = SimulatedEndpoint
    endpoint: SimulatedEndpoint

    @classmethod
    def beside(cls, founder: StagePool) -> Self:
        """Another client, on the founder's mappings."""
        return cls(founder.url, founder._segments, founder.parameters, founder.uuid)

    def begin(self) -> None:
        """Called at the start of a run, when memory is as it was."""


class CachedPool(SimulatedPool):
    """The pool handle of a simulated client with a cache of its own."""

    endpoint_class: type[SimulatedEndpoint] = CachedEndpoint
    endpoint: CachedEndpoint

    @classmethod
    def beside(cls, founder: StagePool) -> Self:
        made = cls.open(founder.url)
        for mine, shared in zip(made._segments[:-1], founder._segments[:-1], strict=True):
            start = founder.parameters.coherent_bytes
            made.endpoint.cover(mine.index, mine.map, shared.map, start)
        return made

    def begin(self) -> None:
        self.endpoint.fill()


class Player:
    """A simulated client, and where it is in the run."""

    def __init__(self, number: int, pool: SimulatedPool) -> None:
        self.number = number
        self.pool = pool
        self.endpoint = pool.endpoint
        self.endpoint.number = number
        self.pid = PID_FIRST + number
        self.store: Any = None
        self.identity = (0, 0, 0)
        self.slabs: list[tuple[int, int, int]] = []
        self.begin()

    def begin(self) -> None:
        """Be at the start of a run."""
        self.greenlet: Any = None
        self.op = 0
        self.step = 0
        self.finished = False
        self.dead = False
        self.stalled = False

    def know_blocks(self) -> None:
        """Know the blocks that are ours at the start, and that all their unused objects are free.

        Nobody is inside an operation.
        """
        allocator = self.pool.allocator
        allocator.forget()
        for node, block, size_class in self.slabs:
            slab = Slab(self.pool.heap, node, block, size_class, False)
            slab.look()
            slab.ripen(NEVER)
            allocator.slabs.setdefault(node << 8 | size_class, []).append(slab)


class Stage:
    """A prepared pool with `clients` simulated clients of a store of this kind.

    `value_size`: bytes of each value. `coherent` False: half of the memory is not
    hardware-coherent, and every client has a cache. `pool_class`: the handles of the simulated
    clients. A context manager.
    """

    def __init__(
        self,
        kind: str,
        clients: int,
        *,
        fence: str = "kill",
        value_size: int = VALUE_SIZE,
        coherent: bool = True,
        pool_class: type[SimulatedPool] | None = None,
    ) -> None:
        self.kind = kind
        self.value_size = value_size
        pool_class = pool_class or (SimulatedPool if coherent else CachedPool)
        self.fence = fence
        self._began = self.clock = RUN_S
        self.run: Run | None = None
        self.processes = SimulatedProcesses(self._end_process)
        log = logging.getLogger("limpet")
        self._restore_log = (log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # every kill is on purpose here
        self.pools: list[StagePool] = []
        self.image: list[bytes] = []
        url = f"shm://limpet-stage-{os.getpid()}-{next(_numbers)}"
        try:
            founder = StagePool.create(
                url, node_size=NODE_SIZE, block_size=BLOCK_SIZE, clients=clients + 2,
                lease_us=LEASE_US, fence=fence,
                coherent=coherent, coherent_bytes=0 if coherent else NODE_SIZE // 2,
            )  # fmt: skip
            self.pools.append(founder)
            try:
                self.players = [Player(i, self._join(pool_class)) for i in range(clients)]
            finally:
                destroy(url)
            self._prepare()
        except BaseException:
            self.close()
            raise

    def value_of(self, label: bytes) -> bytes:
        """The value that a label stands for."""
        return label.ljust(self.value_size, b".")

    def label_of(self, value: bytes) -> bytes:
        """The label of a value; the value itself when nobody can have written it."""
        label = value.rstrip(b".")
        return label if value == self.value_of(label) else value

    @property
    def founder(self) -> StagePool:
        return self.pools[0]

    def _join(self, pool_class: type[SimulatedPool]) -> SimulatedPool:
        pool = pool_class.beside(self.founder)
        self.pools.append(pool)
        return pool

    def _prepare(self) -> None:
        for pool in self.pools:
            pool.membership.watcher.close()
            pool.membership.watcher = self.processes
            pool.membership.now = lambda: self.clock
        parameters = PARAMETERS.get(self.kind, {})
        self.store = self.founder.store(self.kind, name="store", **parameters)
        for player in self.players:
            player.store = player.pool.store(self.kind, name="store")
            names = [b"filler %d.%d" % (player.number, n) for n in range(OBJECTS - 1)]
            if player.number < len(PRESENT):
                names[0] = PRESENT[player.number]
            for name in names:
                player.store.put(name, self.value_of(INITIAL))
        for key in PRESENT[len(self.players) :]:
            self.store.put(key, self.value_of(INITIAL))
        for player in self.players:
            self._disguise(player)
            player.slabs = [
                (slab.node, slab.block, slab.size_class)
                for slabs in player.pool.allocator.slabs.values()
                for slab in slabs
            ]
        client = self.founder.client
        self._founder = (client.ident, client.slot, client.word)
        self.image = self.founder.image()

    def _disguise(self, player: Player) -> None:
        """Have the player's slot say that it is another process."""
        client = player.pool.client
        incarnation = client.word & (1 << 36) - 1
        word = state_word(LIVE, player.pid, incarnation)
        self.founder.endpoint.store(client.slot, word)
        slot = client.ident >> 36
        assert client.slot == slot_address(slot)
        player.identity = (client_id(slot, word), client.slot, word)

    def _end_process(self, pid: int) -> None:
        assert self.run is not None
        self.run.crash(self.players[pid - PID_FIRST])

    def reset(self) -> None:
        """Put memory and clients back to the start of a run."""
        self.founder.restore(self.image)
        self.processes.gone.clear()
        self._began += RUN_S
        self.clock = self._began
        self.founder.client.assume(*self._founder)
        self.founder.allocator.forget()
        for pool in self.pools:
            pool.membership.forked()
        for player in self.players:
            player.begin()
            player.pool.begin()
            player.pool.client.assume(*player.identity)
            player.endpoint.end()
            player.know_blocks()

    def close(self) -> None:
        """Forget the pool."""
        set_level, level = self._restore_log
        set_level(level)
        if self.image:
            self.reset()
        for pool in reversed(self.pools):
            pool.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Run:
    """One run of a program on a stage. `go` runs it; `failure` then says what broke, or is "".

    `schedule`: the departures that were taken. `trace`: every step that was done.
    """

    def __init__(self, stage: Stage, program: Program, chooser: Chooser) -> None:
        self.stage = stage
        self.program = program
        self.chooser = chooser
        self.players = stage.players[: len(program)]
        self.steps = 0
        self.schedule: Schedule = {}
        self.trace: list[Step] = []
        self.history: list[Record] = []
        self.failure = ""
        self._time = 0
        self._patience = 0.0
        self._next: Player | None = None
        self._hub = getcurrent()

    # ---- the scheduler --------------------------------------------------------------------------

    def runnable(self) -> list[Player]:
        """The players that can go on."""
        return [p for p in self.players if not (p.finished or p.dead or p.stalled)]

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        """The scheduler: called by the running player before each verb."""
        player = self.players[endpoint.number]
        if player.dead:
            raise Crashed
        if verb is WAIT:
            return words
        self.stage.clock += VERB_S if verb is not PAUSE else PAUSE_S
        self.steps += 1
        player.step += 1
        if self.steps > STEPS_MAX and not self.failure:
            self.failure = f"no end: still at work after {STEPS_MAX} steps"
            self._hub.switch()
        actions = self.chooser.at(self, player, verb, addr, words)
        target = player
        if actions:
            self.schedule[Point(player.number, player.op, player.step)] = tuple(actions)
            target, words = self._depart(player, actions, words)
        if target is player and (verb is PAUSE or player.dead or player.stalled):
            target = self._after(player) or player
            if target is player and (player.dead or player.stalled):
                self._hub.switch()
        if target is not player:
            target.greenlet.switch()
        if player.dead:
            raise Crashed
        return words

    def _depart(self, player: Player, actions: Actions, words: int) -> tuple[Player, int]:
        """Do what a schedule says at a point; who goes on, and with how many words."""
        target = player
        for kind, number in actions:
            if kind == CUT:
                words = min(words, max(1, number))
            elif number < len(self.players):
                other = self.players[number]
                if kind == CRASH:
                    self.crash(other)
                elif kind == STALL:
                    other.stalled = True
                    self._patience = self.stage.clock + 4e-6 * LEASE_US
                elif kind == WAKE:
                    other.stalled = False
                elif kind == SWITCH and not (other.finished or other.dead or other.stalled):
                    target = other
        return target, words

    def _after(self, player: Player | None) -> Player | None:
        """Who goes on by default when `player` cannot: the next one, or one that stalls."""
        start = -1 if player is None else player.number
        count = len(self.players)
        tired = self.stage.fence == "wait" and self.stage.clock > self._patience
        order = [self.players[(start + i) % count] for i in range(1, count + 1)]
        for other in order:
            if tired and other.stalled and not (other.finished or other.dead):
                other.stalled = False  # nobody may end it, so the others wait for it
            if not (other.finished or other.dead or other.stalled) and other is not player:
                return other
        if player is not None and not (player.finished or player.dead or player.stalled):
            return player
        for other in order:
            if other.stalled and not (other.finished or other.dead):
                other.stalled = False
                return other
        return None

    def crash(self, player: Player) -> None:
        """The player is dead from now on: it is never resumed, but to unwind without a verb."""
        if not player.finished:
            player.dead = True
            self.stage.processes.gone.add(player.pid)

    # ---- the players ----------------------------------------------------------------------------

    def _life(self, player: Player, calls: tuple[Call, ...]) -> None:
        try:
            for player.op, call in enumerate(calls):
                player.step = 0
                self._call(player, call)
        except Crashed:
            pass
        except Exception:
            self.failure = self.failure or f"client {player.number}: {traceback.format_exc()}"
        finally:
            player.finished = True
        if not player.dead and not self.failure:
            player.op, player.step = len(calls), 1
            actions = self.chooser.at(self, player, END, 0, 1)
            if actions:
                self.schedule[Point(player.number, player.op, 1)] = tuple(actions)
                target, _ = self._depart(player, actions, 1)
                self._next = None if target is player else target

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _call(self, player: Player, call: Call) -> None:
        if call.kind == RECOVER:
            player.pool.recover()
            return
        label = b"%d.%d" % (player.number, player.op) if call.kind in WRITES else None
        self._perform(player.store, player.number, call.kind, call.key, label)

    def _perform(self, store: Any, client: int, kind: str, key: bytes, label: Label) -> None:
        """Do an operation, with its call noted before and its result after."""
        index = len(self.history)
        called = Record(client, kind, key, label, "unknown", None, self._tick(), None)
        self.history.append(called)
        read, result = None, "ok"
        try:
            if kind == "get":
                value = store.get(key)
                read, result = (
                    (None, "missing") if value is None else (self.stage.label_of(value), "ok")
                )
            elif kind == "delete":
                store.delete(key)
            else:
                assert label is not None
                getattr(store, kind)(key, self.stage.value_of(label))
        except KeyExists:
            result = "exists"
        except KeyError:
            result = "missing"
        self.history[index] = called._replace(read=read, result=result, return_ns=self._tick())

    # ---- the run --------------------------------------------------------------------------------

    def go(self) -> Run:
        """Run the program from the stage's image to its end, and inspect what is left."""
        stage = self.stage
        stage.reset()
        stage.run = self
        try:
            self._play()
        finally:
            self._unwind()
        for player in self.players:
            player.stalled = False
        if not self.failure:
            self.failure = self._inspect()
        stage.run = None
        return self

    def _play(self) -> None:
        for player, calls in zip(self.players, self.program, strict=True):
            player.endpoint.turn = self.turn
            player.endpoint.trace = self.trace
            player.greenlet = greenlet(functools.partial(self._life, player, calls))
        last = self._after(None)
        while last is not None and not self.failure:
            self._next = None
            last.greenlet.switch()
            last = self._next or self._after(last)

    def _unwind(self) -> None:
        """Let those that are dead, or never come to their end, leave their operations."""
        for player in self.players:
            if player.greenlet:  # started, and not at its end
                player.dead = True
                player.greenlet.throw(Crashed)
            player.endpoint.turn = at_once
            player.endpoint.trace = deque(maxlen=0)

    def _inspect(self) -> str:
        founder, store = self.stage.founder, self.stage.store
        keys = sorted({record.key for record in self.history})
        try:
            for look in ("before recovery", "after recovery"):
                for key in keys:
                    self._perform(store, len(self.players), "get", key, None)
                if look == "before recovery":
                    founder.recover()
            report = check(self.history, initial=dict.fromkeys(PRESENT, INITIAL), processes=1)
            if not report.ok:
                return f"history: {report.bad()[0].detail}"
            store.check()
            audit = founder.audit()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        if audit["leaked"]:
            return f"leaked: {audit['leaked']} bytes: {audit}"
        if audit["held"]:
            return f"held: {audit['held']} bytes by nobody who lives: {audit}"
        return ""

    def digest(self) -> str:
        """A hash of every step and of what every operation came to: equal for equal runs."""
        found = hashlib.blake2b(digest_size=16)
        for client, verb, addr, outcome, _ in self.trace:
            found.update(b"%d %s %d %d;" % (client, verb.encode(), addr, outcome))
        for record in self.history:
            found.update(repr(record).encode())
        return found.hexdigest()
