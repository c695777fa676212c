"""Channels in the simulator: their clusters, and what all their runs have in common.

A channel is explored as a store is, but its programs have words of their own: a letter, and perhaps
a letter more, as the table of subjects says (sim_subjects.py). A word is a call, or a session of
some: a client takes, works, and gives back. So what living clients hold in the end does not depend
on the words that a shrunk program has left. `r` recovers the dead, as in programs of stores.

Time is the simulator's, that of timeouts, too: a sleep is a pause, after which the client looks
again. A client that stands still, and that no client may kill, is woken after 4 leases, as others
may wait for what it holds for ever.

After a run, a client that joins later demands that
    - every client came to its end within a bounded number of steps, and raised no unforeseen error
    - what the dead held can be had, and what must be in the channel is in there
    - the history is one that the channel's model allows (fault/check/channel_models.py)
    - no memory is leaked, and the channels' own memory has the right form
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest import mock

from limpet.fault.check.linearize import Timed
from limpet.fault.explore.schedule import Chooser
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.fault.explore.sim_program import RECOVER, Call, Program, parse_program
from limpet.fault.explore.sim_run import Run
from limpet.shm.endpoint.simulated import Crashed
from limpet.shm.errors import LimpetError
from limpet.stores.channels import waiting

NAME: Final = "channel"
LARGE: Final = b"L"
"""The key of a word whose element takes an object of the pool."""
ITEM_SIZE: Final = 24
LARGE_SIZE: Final = 3400
TIMEOUT_S: Final = 2.0**-10
"""The timeout of words that wait for some time: 16 pauses."""
WAIT: Final = b"w"
FOR_SOME_TIME: Final = b"t"
AT_ONCE: Final = b"n"
"""The keys of words that wait for ever, for some time, or not at all."""


def data_of(label: bytes, key: bytes) -> bytes:
    """The element that a label stands for; with the key LARGE, one that takes an object."""
    return label.ljust(LARGE_SIZE, b".") if key == LARGE else label


def label_of(data: bytes) -> bytes:
    """The label of an element."""
    return data.rstrip(b".")


def _ignored(unraisable: Any) -> None:
    """Say nothing of a dead client whose delivery is dropped as it unwinds."""
    if unraisable.exc_type is not Crashed:
        sys.__unraisablehook__(unraisable)


def _printed(kind: Any, error: Any, trace: Any) -> None:
    """The same, where a compiled class is dropped."""
    if kind is not Crashed:
        sys.__excepthook__(kind, error, trace)


class ChannelHandle:
    """A handle of the channel, in the place of a client's store: a new one for each run."""

    losses_survived = 0

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.forget()

    def forget(self) -> None:
        """Open the channel anew: what a handle knows is of the run before."""
        self.channel = self.make()


class ChannelCluster(SimulatedCluster):
    """A cluster with one channel, of a row of the table of subjects. `parameters`: the channel's,
    besides those of the row."""

    def __init__(
        self, subject: Subject, clients: int, *, parameters: Mapping[str, Any], **chosen: Any
    ) -> None:
        self.subject = subject
        self.given = {**subject.parameters, **parameters}
        self.run_class = subject.run
        super().__init__("race", clients, **chosen)
        self.op_steps = subject.op_steps

    def now(self) -> float:
        """The clock of all clients, in s: of their timeouts as well."""
        return self.clock

    def now_us(self) -> int:
        """The pool's clock."""
        return int(self.clock * 1e6)

    def _prepare(self) -> None:
        super()._prepare()
        self.reset()
        for pool in self.pools:
            pool.endpoint.now_us = self.now_us
        self.store = self._opened(self.setup_client)
        for client in self.clients:
            client.store = self._opened(client.pool)
        self.image = self.setup_client.image()

    def _opened(self, pool: Any) -> Any:
        """A handle. Participants have rows in the order of their numbers, behind the survivor."""

        def make() -> Any:
            channel = pool.channels.open(self.subject.cls, NAME, **self.given)
            with channel.operation():
                if channel.seats:
                    channel.row()
            if pool.remote:
                pool.client.idle()
            return channel

        return ChannelHandle(make)


class ChannelRun(Run):
    """One run of a program of words. A derived class says what they do, and judges the history."""

    cluster: ChannelCluster
    patience_s = 0.0
    """For so long, besides 4 leases, others wait for a client that stands still."""

    def __init__(self, cluster: ChannelCluster, program: Program, chooser: Chooser) -> None:
        super().__init__(cluster, program, chooser)
        self.survivor = len(cluster.clients)
        """The number of the client that joins after the run."""
        self.died: set[int] = set()
        """The clients whose death, or being declared dead, is in the history."""

    # ---- for derived classes --------------------------------------------------------------------

    def act(self, channel: Any, client: SimulatedClient, kind: str, key: bytes) -> None:
        """Do a word of a client."""
        raise NotImplementedError

    def death(self, client: int) -> Any:
        """A client's death as an operation of the model; None: it is none."""
        return None

    def finish(self, channel: Any) -> str:
        """After all clients: take what is left, as the survivor; the fault that shows, or ""."""
        return ""

    def wrong(self) -> str:
        """The fault of the history, or ""."""
        raise NotImplementedError

    # ---- the history ----------------------------------------------------------------------------

    def begin(self, op: Any) -> int:
        """Note that an operation is called, with what is known of it; its number."""
        self.history.append(Timed(op, self._tick(), None))
        return len(self.history) - 1

    def end(self, number: int, op: Any) -> None:
        """Note that it returns, with what is known now."""
        self.history[number] = Timed(op, self.history[number].call_ns, self._tick())

    def note(self, op: Any, work: Callable[[], Any]) -> Any:
        """Do an operation; `work` returns it with its result, as this does."""
        number = self.begin(op)
        done = work()
        self.end(number, done)
        return done

    def rest(self) -> None:
        """The living were called once more after the run, and are idle again."""
        for client in self.clients:
            if client.pool.remote and client.pid not in self.cluster.processes.gone:
                client.pool.client.idle()

    def overdue(self, kind: str) -> None:
        """From now on, all operations of this kind that take effect by themselves have done so."""
        for number, timed in enumerate(self.history):
            if timed.op.kind == kind:
                self.end(number, timed.op)

    # ---- the run --------------------------------------------------------------------------------

    def go(self) -> Run:
        with (
            mock.patch.object(waiting, "now", self.cluster.now),
            mock.patch.object(sys, "unraisablehook", _ignored),
            mock.patch.object(sys, "excepthook", _printed),
        ):
            return super().go()

    def _call(self, client: SimulatedClient, call: Call) -> None:
        if call.kind == RECOVER:
            client.pool.recover()
        else:
            self.act(client.store.channel, client, call.kind, call.key)

    def crash(self, client: SimulatedClient) -> None:
        if not client.finished:
            self._note_death(client)
        super().crash(client)

    def fenced(self, client: SimulatedClient) -> None:
        self._note_death(client)
        super().fenced(client)

    def _note_death(self, client: SimulatedClient) -> None:
        op = self.death(client.number)
        if op is not None and client.number not in self.died:
            self.died.add(client.number)
            self.begin(op)

    def _tired(self) -> bool:
        return self.cluster.clock > self._patience + self.patience_s

    def _inspect(self) -> str:
        setup_client = self.cluster.setup_client
        channel = self.cluster.store.channel
        try:
            wrong = self.finish(channel)
            setup_client.recover()
            setup_client.channels.catalogue.check()
            audit = setup_client.audit()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        if wrong or (wrong := self.wrong()):
            return wrong
        return f"leaked: {audit}" if audit["leaked"] or audit["held"] else ""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A channel that is explored.

    `run`: the class of its runs. `words`: those of its programs, as often as they are drawn.
    `parameters`: those that it is explored with, if no others are given. `op_steps`: about how many
    steps a word takes.
    """

    cls: Any
    run: type[ChannelRun]
    words: str
    parameters: Mapping[str, Any]
    op_steps: int = 60

    def parse(self, text: str) -> Program:
        """The program of a text; ParameterError."""
        return parse_program(text, self.words.split())

    def draw(self, rng: random.Random, clients: int, ops: int, recover: bool) -> Program:
        """A random program."""
        words = self.words.split()
        program = [[rng.choice(words) for _ in range(ops)] for _ in range(clients)]
        if recover and rng.random() < 0.2:
            rng.choice(program)[rng.randrange(ops)] = "r"
        return self.parse("|".join(" ".join(part) for part in program))
