"""Rings, events, counters, arrays, tables and joined queues under schedules of simulated processes
that stall and die; and a variant of each that is wrong and is found out."""

from __future__ import annotations

import collections
import queue
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kit.channels import Play

import limpet
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.shm.endpoint.simulated import PAUSE, SimulatedEndpoint
from limpet.stores.channels.array.array import Array
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.counter import Counter
from limpet.stores.channels.event import SET, Event
from limpet.stores.channels.layout import MASK
from limpet.stores.channels.owned_var import OwnedVar
from limpet.stores.channels.queue.completion import Completion
from limpet.stores.channels.queue.notes import Notes
from limpet.stores.channels.queue.shared_queue import SharedQueue
from limpet.stores.channels.queue.tasks import Tasks
from limpet.stores.channels.ring.layout import END, HEAD
from limpet.stores.channels.ring.messages import Reader, Writer
from limpet.stores.channels.ring.ring_buffer import RingBuffer
from limpet.stores.channels.sst import SST

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower",
    quick=[
        "test_schedules_with_stalls_and_deaths[ring]",
        "test_schedules_with_stalls_and_deaths[counter]",
    ],
)

SCHEDULES = 80 if limpet.build == "compiled" else 15
MUTANT_SCHEDULES = 300


@pytest.fixture(scope="module")
def stage() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 4) as made:
        yield made


class Scene:
    """Channels of the class `cls`, one for each of four simulated processes."""

    def __init__(
        self, stage: SimulatedCluster, seed: int, cls: Any, *, crashes: bool = True, **given: Any
    ):
        stage.reset()
        self.seed = seed
        self.stage = stage
        self.clients = stage.clients
        self.crashes = crashes
        self.channels = [cls(player.pool.channels, "c", **given) for player in self.clients]
        self.pauses = collections.Counter[int]()

    def go(self, lives: list[Callable[[], None]]) -> list[SimulatedClient]:
        """Run each process; perhaps one of them dies. Returns the living."""

        def may_crash() -> bool:
            return self.crashes and not any(player.dead for player in self.clients)

        play = Counting(self.stage, self.seed, lives, may_crash)
        play.pauses = self.pauses
        play.go()
        return [player for player in play.clients if not player.dead]

    def await_(self, number: int, condition: Callable[[], bool]) -> None:
        """Process `number` pauses until it holds."""
        while not condition():
            self.clients[number].endpoint.pause(0)


class Counting(Play):
    """Counts the pauses of each player."""

    pauses: collections.Counter[int]

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        if verb is PAUSE:
            self.pauses[endpoint.number] += 1
        return super().turn(endpoint, verb, addr, words)


# ---- the ring -----------------------------------------------------------------------------------


def ring(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    """A writer, and its successor when it is dead or has closed; two readers, one from the first
    message on. Messages go round some times."""
    overrun = "skip" if seed % 2 else "block"
    scene = Scene(stage, seed, cls, size=160, overrun=overrun, codec="bytes")
    writer, successor, *readers = scene.channels
    ready = [False, False]
    got: list[list[bytes]] = [[], []]
    sent: list[bytes] = []

    def message(number: int) -> bytes:
        return b"%03d" % number + bytes([number]) * (number * 7 % 40)

    def listened() -> bool:
        return all(ready[n] or scene.clients[2 + n].dead for n in range(2))

    def writes() -> None:
        scene.await_(0, listened)
        for number in range(12):
            sent.append(message(number))
            writer.send(sent[-1])
        writer.close()

    def succeeds() -> None:
        scene.await_(1, lambda: scene.clients[0].ended and listened())
        for number in range(100, 104):
            successor.send(message(number))
        successor.send(b"end")

    def reads(number: int) -> Callable[[], None]:
        def life() -> None:
            readers[number].subscribe()
            ready[number] = True
            while b"end" not in got[number]:
                over = scene.clients[0].ended and scene.clients[1].ended
                try:
                    got[number].append(readers[number].receive_nowait())
                except queue.Empty:
                    if over:
                        return
                    scene.clients[2 + number].endpoint.pause(0)

        return life

    living = scene.go([writes, succeeds, reads(0), reads(1)])
    if scene.clients[1] not in living:
        return
    said = [*sent, *(message(number) for number in range(100, 104)), b"end"]
    found = {n: got[n] for n in range(2) if scene.clients[2 + n] in living}
    # The last message of a writer that died is one for all, or for none.
    cut = {sent[-1]} if sent and scene.clients[0] not in living else set()
    totals = {len(each) + readers[n].lost for n, each in found.items()}
    assert len(totals) <= 1, "some have lost what they do not know of"
    assert totals <= {len(said), len(said) - len(cut)}, "not all is got or known as lost"
    for each in found.values():
        assert each == [one for one in said if one in each], "torn, or not in its order"
        assert overrun == "skip" or set(said) - set(each) <= cut, "not all is got"


# ---- the event ----------------------------------------------------------------------------------


def event(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    """Two wait time and again; it is set, and at once cleared, when both have looked."""
    rounds = 4
    scene = Scene(stage, seed, cls)
    passed = [0, 0]
    begun: dict[tuple[int, int], int] = {}
    """Pauses of a waiting client before its wait, by turn and number."""
    sets, clears = [0], [0]

    def looked(turn: int) -> Callable[[], bool]:
        """Whether all have looked, as they have paused since they began to wait."""
        return lambda: all(
            passed[n] > turn or scene.clients[n].dead
            or begun.get((turn, n), scene.pauses[n]) < scene.pauses[n] for n in range(2)
        )  # fmt: skip

    def cleared(turns: int) -> Callable[[], bool]:
        return lambda: clears[0] >= turns

    def waiter(number: int) -> Callable[[], None]:
        def life() -> None:
            for turn in range(rounds):
                scene.await_(number, cleared(turn))
                begun[turn, number] = scene.pauses[number]
                assert scene.channels[number].wait()
                assert sets[0] > turn, "no client had set it"
                passed[number] += 1

        return life

    def setter(number: int) -> Callable[[], None]:
        def life() -> None:
            if number == 3:
                scene.await_(3, lambda: scene.clients[2].ended)
            for turn in range(clears[0], rounds):
                scene.await_(number, looked(turn))
                sets[0] = turn + 1
                scene.channels[number].set()
                scene.channels[number].clear()
                clears[0] = turn + 1

        return life

    living = scene.go([waiter(0), waiter(1), setter(2), setter(3)])
    if scene.clients[3] in living:
        assert all(passed[n] == rounds for n in range(2) if scene.clients[n] in living)


# ---- numbers ------------------------------------------------------------------------------------


def additions(scene: Scene, add: Callable[[Any], float]) -> None:
    """All add 1, five times."""
    told: list[list[float]] = [[] for _ in scene.clients]
    begun = [0] * len(scene.clients)

    def life(number: int) -> Callable[[], None]:
        def adds() -> None:
            for _ in range(5):
                begun[number] += 1
                told[number].append(add(scene.channels[number]))

        return adds

    living = scene.go([life(number) for number in range(len(scene.clients))])
    found = [one for each in told for one in each]
    assert len(set(found)) == len(found), "two were told the same"
    assert all(each == sorted(each) for each in told)
    total = add(scene.channels[living[0].number]) - 1
    assert len(found) <= total <= sum(begun), "additions were lost"


def counter(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    additions(Scene(stage, seed, cls), lambda one: one.add(1))


def array(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    scene = Scene(stage, seed, cls, shape=2, dtype=("i8", "f8", "i4", "f4")[seed % 4])
    additions(scene, lambda one: one.add(1, 1))


def neighbours(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    """Each client changes an element of its own, of which several are in one word."""
    dtype = ("i4", "u2", "i1", "f2")[seed % 4]
    scene = Scene(stage, seed, cls, shape=4, dtype=dtype)
    begun = [0] * 4

    def life(number: int) -> Callable[[], None]:
        def changes() -> None:
            mine = scene.channels[number]
            for count in range(5):
                begun[number] = count + 1
                match count % 3:
                    case 0:
                        assert mine.add(number, 1) == count + 1
                    case 1:
                        assert mine.swap(number, count + 1) == count
                    case _:
                        assert mine.compare_and_swap(number, count, count + 1)
                assert mine[number] == count + 1, "another client has changed it"

        return changes

    living = scene.go([life(number) for number in range(4)])
    found = list(scene.channels[living[0].number])
    for number, client in enumerate(scene.clients):
        least = begun[number] - (client not in living)
        assert least <= found[number] <= begun[number], "a change was lost"


# ---- owned variables ----------------------------------------------------------------------------


def table(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    """Two clients push values of five words, and two look at them, which may join only later."""
    words, pushes = 5, 8
    scene = Scene(stage, seed, cls, participants=4, size=8 * words, join=False)
    pushed = [0, 0]

    def owner(number: int) -> Callable[[], None]:
        def life() -> None:
            mine = scene.channels[number]
            for count in range(1, pushes + 1):
                mine.store_mine(bytes([count, number, *[count] * 6]) * words)
                mine.push_broadcast()
                pushed[number] = count

        return life

    def reader(number: int) -> Callable[[], None]:
        def life() -> None:
            if seed % 3 == number % 2:
                scene.channels[number].mine()
            known = [0, 0]
            while not all(player.ended for player in scene.clients[:2]):
                look(scene.channels[number], known)
            look(scene.channels[number], known)

        return life

    def look(channel: Any, known: list[int]) -> None:
        """`known`: the last count of each that was seen."""
        least = [max(known[n], pushed[n]) for n in range(2)]
        known[:] = [0, 0]
        for var in channel:
            value = var.load()
            assert value == value[:8] * words, "torn"
            count, owner = value[:2]
            known[owner] = max(known[owner], count)
        assert all(known[n] >= least[n] for n in range(2)), "an older value was read"

    living = scene.go([owner(0), owner(1), reader(2), reader(3)])
    known = [0, 0]
    look(scene.channels[living[-1].number], known)
    assert all(known[n] == pushes for n in range(2) if scene.clients[n] in living)


# ---- join ---------------------------------------------------------------------------------------


def join(stage: SimulatedCluster, seed: int, cls: Any) -> None:
    """Two workers, which put another element before they are done with one; two clients in join."""
    scene = Scene(stage, seed, cls, crashes=seed % 2 == 1, maxsize=4, codec="bytes")
    for channel in scene.channels:
        channel.patience = 2
    there: set[bytes] = set()
    """Elements whose put has returned, and that no client is done with."""
    empty = [0]
    """How often it has become empty."""
    over = [False]

    done: set[bytes] = set()

    def put(channel: Any, item: bytes) -> None:
        channel.put(item)
        there.update({item} - done)

    def work(number: int) -> Callable[[], None]:
        def life() -> None:
            channel = scene.channels[number]
            while not over[0]:
                try:
                    item = channel.get_nowait()
                except queue.Empty:
                    scene.clients[number].endpoint.pause(0)
                    continue
                there.add(item)
                if len(item) < 8:
                    put(channel, item + b"%d" % number)
                done.add(item)
                there.discard(item)
                empty[0] += not there
                channel.task_done()

        return life

    def joins(channel: Any, timeout: float | None) -> bool:
        """Join; whether that has told that all is done."""
        before = empty[0] - (not there)
        try:
            if not channel.join(timeout):
                return False
        except limpet.TasksLost as error:
            count = error.count
        else:
            dead = any(player.dead for player in scene.clients)
            assert dead or empty[0] > before, f"{there} was not done"
            return True
        assert any(player.dead for player in scene.clients), "no client has died"
        assert count <= 1, "more than one was lost"
        channel.forget_lost()
        return False

    def puts() -> None:
        put(scene.channels[2], b"a")
        put(scene.channels[2], b"b")
        while not joins(scene.channels[2], None):
            pass
        over[0] = True

    def watches() -> None:
        while not over[0] and not scene.clients[2].dead:
            joins(scene.channels[3], 0)
        over[0] = True

    scene.go([work(0), work(1), puts, watches])


# ---- all of them --------------------------------------------------------------------------------

SCENES: dict[str, tuple[Callable[[SimulatedCluster, int, Any], None], Any]] = {
    "ring": (ring, RingBuffer),
    "event": (event, Event),
    "counter": (counter, Counter),
    "array": (array, Array),
    "neighbours": (neighbours, Array),
    "table": (table, SST),
    "join": (join, SharedQueue),
}


class NeverOvertaken(Reader):
    def was_overtaken(self, oldest: int) -> bool:
        return False


class CountsAll(Writer):
    def counts(self, word: int) -> bool:
        return True


class WritesLate(Writer):
    def write(self, data: bytes) -> int:
        end = self.end + HEAD + (len(data) + 7 & ~7)
        self.endpoint.swap(self.messages.address + END, end)
        return int(super().write(data) or 0)


class SetsOneBit(Event):
    def set(self) -> None:
        with self.operation():
            state = self.endpoint.load(self.address)
            while not state & SET:
                self.endpoint.cas(self.address, state, state | SET)
                state = self.endpoint.load(self.address)
            self.waiting.wake()


class ReadsFirst(AtomicVar):
    def faa(self, delta: int) -> int:
        with self.operation():
            before = int(self.endpoint.load(self.address))
            self.endpoint.store(self.address, before + delta & MASK)
            self.endpoint.wait()
        return before


class AddsBlindly(Array):
    def add(self, index: int, delta: float = 1) -> float:
        if self.dtype != np.float64:
            return super().add(index, delta)
        at = self.address + 8 * index
        with self.operation():
            (before,) = struct.unpack("<d", struct.pack("<Q", self.endpoint.load(at)))
            (word,) = struct.unpack("<Q", struct.pack("<d", before + delta))
            self.endpoint.swap(at, word)
            self.endpoint.wait()
        return float(before + delta)


class AddsToTheWord(Array):
    """Changes a part of a word by reading the word and writing it."""

    def add(self, index: int, delta: float = 1) -> float:
        if self.dtype != np.int32:
            return super().add(index, delta)
        with self.operation():
            word = int(self.endpoint.load(self.address))
            shift = 32 * index
            after = (word >> shift) + int(delta) & 0xFFFF_FFFF
            self.endpoint.swap(self.address, word & ~(0xFFFF_FFFF << shift) | after << shift)
            self.endpoint.wait()
        return after


class WritesNewerCopy(OwnedVar):
    def is_second_older(self, copies: list[tuple[int, bytes]]) -> bool:
        return not super().is_second_older(copies)


class BelievesCopies(OwnedVar):
    def is_whole(self, sequence: int, checksum: int, value: bytes) -> bool:
        return sequence > 0


class CountsLate(Tasks):
    """Counts an element as open when it is noted as taken, and not before."""

    late = 0
    """Our word with the element that is not counted yet; 0: there is none."""

    def post(self, word: int) -> int:
        if word > self.word:
            self.late = word
            return int(self.endpoint.post_load(self.own))
        return int(super().post(word))

    def is_done(self, ticket: int, word: int) -> bool:
        return word == self.late or bool(super().is_done(ticket, word))

    def end(self) -> bool:
        if self.late:
            self.late = 0
            return True
        return bool(super().end())

    def count_now(self) -> None:
        word, self.late = self.late, 0
        ticket = super().post(word)
        self.endpoint.wait()
        super().is_done(ticket, word)


class NotesLate(Notes):
    def mark_taken(self, row: int, number: int, slot: int, ticket: int, word: int) -> int:
        self.tasks.count_now()
        return int(super().mark_taken(row, number, slot, ticket, word) or 0)


class LooksNoMore(Completion):
    def has_more(self, tail: int, now: int) -> bool:
        return False


def with_parts(cls: Any, **parts: Any) -> Any:
    """The channel with other classes of its parts."""
    return type("Bad", (cls,), parts)


MUTANTS: dict[str, tuple[str, Any]] = {
    "a reader does not look whether it was overtaken": (
        "ring",
        with_parts(RingBuffer, reader_class=NeverOvertaken),
    ),
    "dead readers are waited for": ("ring", with_parts(RingBuffer, writer_class=CountsAll)),
    "a message is there before it is written": (
        "ring",
        with_parts(RingBuffer, writer_class=WritesLate),
    ),
    "a waiter does not see that it was set meanwhile": ("event", SetsOneBit),
    "a counter is read, and then written": (
        "counter",
        with_parts(Counter, variable_class=ReadsFirst),
    ),
    "an element is read, and then written": ("array", AddsBlindly),
    "a part of a word is changed by writing the word": ("array", AddsToTheWord),
    "a neighbour in the word is lost": ("neighbours", AddsToTheWord),
    "the owner writes over the newer copy": (
        "table",
        with_parts(SST, variable_class=WritesNewerCopy),
    ),
    "the copy of a reader is not checked": (
        "table",
        with_parts(SST, variable_class=BelievesCopies),
    ),
    "an element is counted when it was taken": (
        "join",
        with_parts(SharedQueue, tasks_class=CountsLate, notes_class=NotesLate),
    ),
    "what was put meanwhile is not looked for": (
        "join",
        with_parts(SharedQueue, completion_class=LooksNoMore),
    ),
}


@pytest.mark.exhaustive("every channel", quick=["counter", "ring", "event", "array"])
@pytest.mark.parametrize("name", SCENES)
def test_schedules_with_stalls_and_deaths(stage: SimulatedCluster, name: str) -> None:
    scene, cls = SCENES[name]
    for seed in range(SCHEDULES):
        try:
            scene(stage, seed, cls)
        except (AssertionError, limpet.LimpetError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("name", MUTANTS)
def test_known_bad_variants_are_caught(stage: SimulatedCluster, name: str) -> None:
    what, bad = MUTANTS[name]
    scene, _ = SCENES[what]
    for seed in range(MUTANT_SCHEDULES):
        try:
            scene(stage, seed, bad)
        except (AssertionError, limpet.LimpetError, OverflowError):
            return  # a variant may take any number for a place
    pytest.fail("nothing was noticed")
