"""Simulated clients of one queue that wait for each other: a locks.py of queues.

Fewer than half of the clients put, two or more get. Only they wake a sleeping client, or its
time is over; a sleep is in vain if there was an element, or room, for long, and no client was on
the way.
"""

from __future__ import annotations

from typing import Any, Final

from kit.locks import LockStage, Player, Run
from limpet.shm.endpoint.simulated import PID_FIRST, Crashed
from limpet.stores.channels.queue.shared_queue import SharedQueue

MAXSIZE: Final = 3
WOKEN: Final = "woken"
WAKING: Final = "waking"
REST_MAX: Final = 400
VAIN_S: Final = 2e-3


class QueueStage(LockStage):
    """A pool with `clients` simulated clients of one queue of the class `kind`."""

    def __init__(self, clients: int, kind: type[Any] = SharedQueue) -> None:
        super().__init__(clients, kind)

    def _open(self, pool: Any) -> Any:
        given = {"maxsize": MAXSIZE, "item_size": 24, "codec": "bytes"}
        return pool.channels.open(self.kind, "queue", **given)

    def _equip(self, player: Player) -> None:
        player.lock = player.channel


class QueueRun(Run):
    """One run: each producer puts `times` elements; the others get as many as there are.

    `dies`: one client dies when it was WOKEN, and has not looked yet, or when it has said that it
    wakes a client, and has not (WAKING).
    """

    def __init__(self, stage: LockStage, seed: int, *, dies: str = "", **options: Any) -> None:
        super().__init__(stage, seed, **options)
        self.putters = self.players[: (len(self.players) - 1) // 2]
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        self._since = dict.fromkeys((stage.channel.news.address, stage.channel.room.address), 0.0)
        """When there was nothing last that sleepers of each kind wait for."""
        self.slept = 0
        self.on_the_way: set[int] = set()
        """Players that were woken, and have not had their element, or place, yet."""
        self.dies = dies

    def _life(self, player: Player) -> None:
        try:
            for turn in range(self.times):
                if player in self.putters:
                    item = b"%d.%d" % (player.number, turn)
                    player.lock.put(item)
                    self.on_the_way.discard(player.number)
                    self.put.append(item)
                self._rest(player)
            while player not in self.putters:
                self.got.append(player.lock.get())
                self.on_the_way.discard(player.number)
                self._rest(player)
        except Crashed:
            pass
        except Exception as error:
            self.failure = self.failure or f"client {player.number}: {error!r}"
        finally:
            player.finished = True

    def _rest(self, player: Player) -> None:
        """Do something else, sometimes for so long that others fall asleep."""
        for _ in range(self.rng.choice((0, self.rng.randrange(REST_MAX)))):
            player.pool.endpoint.pause(0)

    def sleep(self, number: int, addr: int, timeout_us: int) -> int:
        self.slept += 1
        woken = super().sleep(number, addr, timeout_us)
        if woken:
            self.on_the_way.add(number)
            self._end(WOKEN, number)
        return woken

    def wake(self, number: int, addr: int, count: int) -> int:
        self._end(WAKING, number)
        return super().wake(number, addr, count)

    def _end(self, how: str, number: int) -> None:
        """Let this client die now, if it is its time to."""
        if how == self.dies and self.rng.random() < 0.3:
            self.dies = ""
            self.crash(self.players[number])
            raise Crashed

    def _look(self) -> None:
        count = self.stage.channel.qsize()
        if count == 0:
            self._since[self.stage.channel.news.address] = self.stage.clock
        if self._taken() == MAXSIZE:
            self._since[self.stage.channel.room.address] = self.stage.clock

    def _taken(self) -> int:
        """Places that are no room, whatever is in there."""
        load, channel = self.stage.setup_client.endpoint.load, self.stage.channel
        return int(load(channel.ring.tail) - load(channel.ring.head))

    def _vainly(self, addr: int) -> bool:
        """Not if a client was woken and is about to look, or has not come to the end of that."""
        puts = addr == self.stage.channel.room.address
        woken = any(
            (one.asleep == addr and one.woken) or one.number in self.on_the_way
            for one in self.players
            if not one.dead and (one in self.putters) == puts
        )
        return not woken and self.stage.clock - self._since[addr] > VAIN_S

    def _over(self) -> bool:
        """All was put, and nothing is left to get, or being got."""
        working = [one for one in self.players if not (one.dead or one.finished or one.asleep)]
        waiting = any(one.asleep for one in self.putters if not one.dead)
        return not (working or waiting) and self.stage.channel.qsize() == 0

    def _wrong(self) -> str:
        lost = set(self.put) - set(self.got)
        if len(set(self.got)) != len(self.got):
            return "an element was got twice"
        gone = self.stage.processes.gone
        takers = [one for one in self.players if one not in self.putters]
        if len(lost) > sum(PID_FIRST + one.number in gone for one in takers):
            return f"lost: {lost}"
        return ""
