"""Simulated clients that use channels: each in a greenlet, any of which may stall or die."""

from __future__ import annotations

import random
from collections.abc import Callable

from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.shm.endpoint.simulated import PAUSE, WAIT, Crashed, SimulatedEndpoint, at_once

STEPS_MAX = 30_000
STALL_MAX = 300


class Play:
    """One run of what each player does; `may_crash` says when one of them may.

    A verb on several words may stall, and the client die, between any two of them.
    """

    def __init__(
        self,
        stage: SimulatedCluster,
        seed: int,
        lives: list[Callable[[], None]],
        may_crash: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stage = stage
        self.rng = random.Random(seed)
        self.lives = lives
        self.may_crash = may_crash
        self.clients = stage.clients[: len(lives)]
        self.steps = 0
        self.crash_at = self.rng.randrange(1, 250)
        self.awake = dict.fromkeys(range(len(lives)), 0)
        self.failure: BaseException | None = None
        self.hub = getcurrent()

    @property
    def dead(self) -> list[SimulatedClient]:
        return [player for player in self.clients if player.dead]

    def go(self) -> None:
        """Run it to its end; raises what a player raised."""
        for player, life in zip(self.clients, self.lives, strict=True):
            player.endpoint.turn = self.turn
            player.greenlet = greenlet(lambda player=player, life=life: self.live(player, life))
        try:
            while (current := self.some()) is not None and self.failure is None:
                current.greenlet.switch()
        finally:
            for player in self.clients:
                if player.greenlet and not player.greenlet.dead:
                    player.dead = True
                    player.greenlet.throw(Crashed)
                player.endpoint.turn = at_once
        if self.failure is not None:
            raise self.failure

    def live(self, player: SimulatedClient, life: Callable[[], None]) -> None:
        try:
            life()
        except Crashed:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        player.finished = True

    def some(self) -> SimulatedClient | None:
        able = [player for player in self.clients if not player.ended]
        woken = [player for player in able if self.awake[player.number] <= self.steps]
        return self.rng.choice(woken or able) if able else None

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        player = self.clients[endpoint.number]
        if player.dead:
            raise Crashed
        if verb is WAIT:
            return words
        self.steps += 1
        self.stage.clock += 2.0**-20
        if self.steps > STEPS_MAX and self.failure is None:
            self.failure = AssertionError(f"still at work after {STEPS_MAX} steps")
        if self.failure is not None:
            self.hub.switch()
        if self.may_crash():
            self.crash_at -= 1
            if self.crash_at == 0:
                victim = self.rng.choice([one for one in self.clients if not one.ended])
                victim.dead = True
                self.stage.processes.gone.add(victim.pid)
        if self.rng.random() < 0.01:
            self.awake[player.number] = self.steps + self.rng.randrange(STALL_MAX)
        stays = verb is not PAUSE and self.rng.random() < 0.6
        if not stays or player.dead or self.awake[player.number] > self.steps:
            other = self.some()
            if other is not None and other is not player:
                other.greenlet.switch()
        if player.dead:
            raise Crashed
        return words if words == 1 or self.rng.random() < 0.5 else self.rng.randrange(1, words)
