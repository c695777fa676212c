"""Posted verbs: on mapped memory what their verbs are; in the simulator in any order across nodes,
and with results that cannot be looked at before `wait`."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.fabrics import BOTH, SIZE, address, endpoint_on

from limpet.fault.explore.schedule import IN_WAIT, LATE, Action, Point, parse_schedule
from limpet.shm.endpoint.fabric import Endpoint, post_summed, write_summed
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.endpoint.simulated import WAIT, Crashed, SimulatedEndpoint
from limpet.shm.endpoint.simulated_memory import POISON
from limpet.shm.errors import AddressError, NodeFailed, PhaseError

MAX = (1 << 64) - 1


def words(*values: int) -> Any:
    return memoryview(array("Q", values))


# ---- on mapped memory ----------------------------------------------------------------------------


def read(one: Any, verb: str) -> Any:
    found = words(*range(20))
    getattr(one, verb)(64, found, 12, 3)
    return found.tolist()


def tagged(one: Any, verb: str) -> Any:
    found = words(*range(40))
    return getattr(one, verb)(64, 256, found, 1, 0), found.tolist()


def gather(one: Any, verb: str) -> Any:
    return getattr(one, verb)(128, words(5, 6, 7), 2, b"first", b"second")


PAIRS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "post_load": ("load", lambda one, verb: getattr(one, verb)(8)),
    "post_swap": ("swap", lambda one, verb: getattr(one, verb)(8, MAX)),
    "post_cas": ("cas", lambda one, verb: getattr(one, verb)(8, 1, 2)),
    "post_faa": ("faa", lambda one, verb: getattr(one, verb)(8, 3)),
    "post_fetch_or": ("fetch_or", lambda one, verb: getattr(one, verb)(8, 6)),
    "post_mcas": ("mcas", lambda one, verb: getattr(one, verb)(8, 1, 12, 1, 15)),
    "post_read": ("read_words", read),
    "post_tagged": ("read_tagged", tagged),
    "post_write": ("write_words", lambda one, verb: getattr(one, verb)(64, words(1, 2, 3), 2, 1)),
    "post_gather": ("write_gather", gather),
    "fetch": ("read", lambda one, verb: getattr(one, verb)(64, 40)),
}
WRITES = ("post_write", "post_gather")


class Plain(HookedEndpoint, verbs=(*READS, *MUTATING)):
    """Verbs that are overridden, and do what they did."""


@pytest.fixture(params=BOTH)
def fabric(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[*BOTH, "hooked"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Any]:
    with mmap.mmap(-1, SIZE) as mapping:
        if request.param == "hooked":
            made = Plain()
            made.attach(0, mapping, SIZE)
            yield made
            made.detach()
        else:
            with endpoint_on(request.param, mapping) as found:
                yield found


@pytest.mark.parametrize("name", PAIRS)
def test_a_posted_verb_is_done_at_once_and_is_no_look(endpoint: Any, name: str) -> None:
    verb, call = PAIRS[name]
    outcomes = []
    for one in (verb, name):
        endpoint.write(0, bytes(range(256)) * 2)
        endpoint.store(8, 1)
        endpoint.reset_counters()
        result = call(endpoint, one)
        counted = endpoint.counters()
        outcomes.append((result, endpoint.read(0, 512), counted))
    (result, memory, usual), (ticket, posted_memory, posted) = outcomes
    assert posted_memory == memory
    assert ticket == result
    assert usual.pop("exchanges") == (name not in WRITES)
    assert posted.pop("exchanges") == (name == "fetch")
    assert posted.pop("round_trips") == (name == "fetch")
    assert usual.pop("round_trips") == 0
    assert posted == usual
    if isinstance(ticket, int):
        assert endpoint.result(ticket) == ticket


def test_a_verb_that_depends_on_another_one_happens_if_that_has_won(endpoint: Any) -> None:
    won = endpoint.post_cas(8, 0, 5)
    second = endpoint.post_cas_if(won, 0, 16, 0, 7)
    lost = endpoint.post_cas(8, 0, 6)
    third = endpoint.post_cas_if(lost, 0, 16, 7, 8)
    endpoint.wait()
    assert [endpoint.result(one) for one in (won, second, lost)] == [0, 0, 5]
    assert endpoint.result(third) != 7
    assert (endpoint.load(8), endpoint.load(16)) == (5, 7)


def test_a_write_that_depends_on_a_load_happens_if_that_has_found_it(endpoint: Any) -> None:
    endpoint.store(8, 5)
    ticket = endpoint.post_load(8)
    endpoint.post_gather_if(ticket, 5, 64, words(1, 2), 2, b"right", b"")
    endpoint.post_gather_if(ticket, 6, 96, words(3, 4), 2, b"wrong", b"")
    endpoint.wait()
    assert endpoint.read(64, 21) == words(1, 2).tobytes() + b"right"
    assert endpoint.read(96, 21) == bytes(21)


def test_a_phase_is_one_exchange_and_each_look_before_its_end_another(endpoint: Any) -> None:
    endpoint.reset_counters()
    tickets = [endpoint.post_load(8), endpoint.post_cas(16, 0, 1), endpoint.post_faa(24, 1)]
    endpoint.post_write(32, words(1), 1)
    endpoint.wait()
    assert [endpoint.result(ticket) for ticket in tickets] == [0, 0, 0]
    assert endpoint.counters()["exchanges"] == endpoint.counters()["round_trips"] == 1
    endpoint.load(8)
    endpoint.post_load(16)
    endpoint.wait()
    assert endpoint.counters()["exchanges"] == 3
    assert endpoint.counters()["round_trips"] == 2
    endpoint.background(True)
    endpoint.load(8)
    endpoint.background(False)
    assert endpoint.counters()["exchanges"] == 3
    assert endpoint.counters("background")["exchanges"] == 1


def test_what_an_operation_sends_is_one_message_to_each_node(endpoint: Any) -> None:
    for _ in range(2):
        endpoint.write(0, bytes(range(1, 65)))
        endpoint.reset_counters()
        endpoint.begin()
        endpoint.post_set(8, 6)
        endpoint.send_clear(0, 0xFF00)
        endpoint.send_store(16, 7)
        endpoint.send_store_two(24, 8, 32, 9)
        endpoint.send_words(40, words(10, 11), 2)
        endpoint.end()
        after = [endpoint.load(8 * index) for index in range(7)]
        assert after[0] == 0x0807060504030001
        assert after[1] == 0x100F0E0D0C0B0A09 | 6
        assert after[2:] == [7, 8, 9, 10, 11]
        counted = endpoint.counters("background")
        found = {name: count for name, count in counted.items() if count}
        assert found == {"cas": 1, "writes": 4, "bytes_written": 40, "exchanges": 1}
        assert endpoint.counters()["atomics"] == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_a_posted_image_is_what_was_read(endpoint: Any, in_place: bool) -> None:
    endpoint.write(64, (3).to_bytes(8, "little") + bytes(8) + b"key" + bytes(45))
    image = endpoint.image(64, in_place)
    endpoint.reset_counters()
    for key in (b"key", b"kez", b"ke"):
        image.post_keyed(64, 8, 16, key)
        assert endpoint.counters()["exchanges"] == 0
        assert image.matched(16, key) == (key == b"key")
    image.post(72, 4)
    assert (image.head, image.cut(8, 3)) == (0, b"key")
    assert endpoint.counters()["exchanges"] == 0
    assert endpoint.counters()["bytes_read"] == 3 * 64 + 32


@pytest.mark.parametrize("size", [5, 70_000])
@pytest.mark.parametrize("kind", [Endpoint, Plain])
def test_a_posted_write_has_the_same_sum(kind: Any, size: int) -> None:
    found = []
    for verb in (write_summed, post_summed):
        with mmap.mmap(-1, 1 << 17) as mapping:
            endpoint = kind()
            endpoint.attach(0, mapping, 1 << 17)
            verb(endpoint, 64, words(1, 2, 0), 3, b"key", bytes(range(5)) * (size // 5), 9)
            found.append(mapping[:])
            endpoint.detach()
    assert found[0] == found[1]
    assert any(found[0])


# ---- in the simulator ----------------------------------------------------------------------------


class Scheduled:
    """A turn: the verbs with these numbers are late, by so many verbs; `done` is what was done."""

    def __init__(self, **late: int) -> None:
        self.late = {int(name[1:]): by for name, by in late.items()}
        self.count = 0
        self.dies = 0
        self.gone: set[int] = set()

    def __call__(self, endpoint: Any, verb: str, addr: int, words: int) -> int:
        if verb is WAIT:
            return words
        self.count += 1
        if self.dies and self.count >= self.dies:
            raise Crashed
        if endpoint.phase.posting and self.count in self.late:
            return -self.late[self.count]
        if addr >> 40 in self.gone:
            raise NodeFailed(addr >> 40, "gone")
        return words


@pytest.fixture
def simulated() -> Iterator[SimulatedEndpoint]:
    with mmap.mmap(-1, SIZE) as first, mmap.mmap(-1, SIZE) as second, mmap.mmap(-1, SIZE) as third:
        made = SimulatedEndpoint()
        made.attach(0, first, SIZE)
        made.attach(1, second, SIZE)
        made.attach(255, third, SIZE)
        made.trace = []
        yield made
        made.turn = lambda endpoint, verb, addr, words: words
        made.phase.forget()
        made.detach()


A, B, A_TOO = address(0, 8), address(1, 8), address(0, 16)
CONTROL = address(255, 8)


def order(endpoint: SimulatedEndpoint) -> list[int]:
    """The addresses of what was done, in its order."""
    return [addr for _, _, addr, _, _ in endpoint.trace]


def post_all(endpoint: SimulatedEndpoint) -> None:
    endpoint.post_cas(A, 0, 1)
    endpoint.post_cas(A_TOO, 0, 1)
    endpoint.post_cas(B, 0, 1)


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ({}, [A, A_TOO, B]),
        ({"_1": 1}, [B, A, A_TOO]),  # what is posted behind it on its node is late, too
        ({"_1": IN_WAIT}, [B, A, A_TOO]),
        ({"_2": 1}, [A, B, A_TOO]),
        ({"_2": IN_WAIT}, [A, B, A_TOO]),
        ({"_3": IN_WAIT}, [A, A_TOO, B]),
    ],
)
def test_posted_verbs_are_done_in_any_order_across_nodes_and_in_order_on_each(
    simulated: SimulatedEndpoint, late: dict[str, int], expected: list[int]
) -> None:
    simulated.turn = Scheduled(**late)
    post_all(simulated)
    simulated.wait()
    assert order(simulated) == expected


def test_a_verb_that_is_not_posted_has_those_on_its_node_done_first(
    simulated: SimulatedEndpoint,
) -> None:
    simulated.turn = Scheduled(_1=IN_WAIT, _2=IN_WAIT)
    simulated.post_cas(A, 0, 1)
    simulated.post_cas(B, 0, 1)
    assert simulated.load(A) == 1
    assert order(simulated) == [A, A]
    simulated.wait()
    assert order(simulated) == [A, A, B]


def test_a_client_that_dies_in_a_phase_leaves_later_verbs_done_and_earlier_ones_not(
    simulated: SimulatedEndpoint,
) -> None:
    simulated.turn = scheduled = Scheduled(_1=IN_WAIT)
    post_all(simulated)
    scheduled.dies = 3
    with pytest.raises(Crashed):
        simulated.wait()
    assert order(simulated) == [B]


def test_a_result_comes_with_wait(simulated: SimulatedEndpoint) -> None:
    for turn in (Scheduled(), Scheduled(_1=IN_WAIT)):
        simulated.turn = turn
        ticket = simulated.post_load(A)
        with pytest.raises(PhaseError, match=r"load at 0x8 was looked at before `wait`"):
            simulated.result(ticket)
        simulated.wait()
        assert simulated.result(ticket) == 0
        with pytest.raises(PhaseError, match=r"no ticket"):
            simulated.result(5)


@pytest.mark.parametrize(
    "use",
    [
        lambda one, ticket: one.post_cas(A, ticket, 1),
        lambda one, ticket: one.post_cas(A, 1, ticket),
        lambda one, ticket: one.post_load(ticket),
        lambda one, ticket: one.post_read(ticket, words(0), 1),
        lambda one, ticket: one.post_write(A, words(ticket), 1),
    ],
)
def test_a_ticket_that_is_taken_for_its_result_is_found(
    simulated: SimulatedEndpoint, use: Callable[[Any, int], object]
) -> None:
    ticket = simulated.post_load(A)
    simulated.wait()
    with pytest.raises(PhaseError, match=r"of load at 0x8 that was looked at"):
        use(simulated, ticket)


def test_words_have_no_meaning_before_wait(simulated: SimulatedEndpoint) -> None:
    simulated.store(A, 7)
    found = words(1, 1, 1, 1)
    simulated.post_read(A, found, 2, 1)
    assert found.tolist() == [1, POISON, POISON, 1]
    simulated.wait()
    assert found.tolist() == [1, 7, 0, 1]
    more = words(*[0] * 32)
    simulated.store(A, 9 << 56)
    ticket = simulated.post_tagged(address(0, 0), address(0, 128), more, 0, 9)
    simulated.wait()
    assert simulated.result(ticket) == 2
    assert more[1] == 9 << 56


@pytest.mark.parametrize("in_place", [False, True])
def test_an_image_cannot_be_looked_at_before_wait(
    simulated: SimulatedEndpoint, in_place: bool
) -> None:
    simulated.write(address(0, 64), (3).to_bytes(8, "little") + bytes(8) + b"key")
    image: Any = simulated.image(64, in_place)
    image.post_keyed(address(0, 64), 8, 16, b"key")
    for look in (
        lambda: image.word(0),
        lambda: image.cut(16, 3),
        lambda: image.equal(16, b"key"),
        lambda: image.matched(16, b"key"),
        lambda: image.compare(16, 3, b"key"),
    ):
        with pytest.raises(PhaseError, match=r"before `wait`"):
            look()
    simulated.wait()
    assert image.head == image.word(0) == 3
    assert image.matched(16, b"key")
    assert not image.matched(16, b"kez")
    image.post(address(0, 72), 4)
    simulated.wait()
    assert (image.head, image.cut(8, 3)) == (0, b"key")


def test_a_dependent_verb_is_of_the_phase_and_node_of_the_other(
    simulated: SimulatedEndpoint,
) -> None:
    first = simulated.post_cas(A, 0, 1)
    with pytest.raises(PhaseError, match=r"not of its phase and node"):
        simulated.post_cas_if(first, 0, B, 0, 1)
    with pytest.raises(PhaseError, match=r"not of its phase and node"):
        simulated.post_gather_if(first, 0, B, array("Q", [1]), 1, b"", b"")
    simulated.wait()
    with pytest.raises(PhaseError, match=r"not of its phase and node"):
        simulated.post_cas_if(first, 0, A_TOO, 0, 1)


@pytest.mark.parametrize("late", [{}, {"_1": IN_WAIT}, {"_1": 1}])
@pytest.mark.parametrize("there", [0, 4])
def test_a_dependent_verb_happens_only_if_the_other_has_won(
    simulated: SimulatedEndpoint, late: dict[str, int], there: int
) -> None:
    simulated.store(A, there)
    simulated.turn = Scheduled(**late)
    first = simulated.post_cas(A, 0, 1)
    second = simulated.post_cas_if(first, 0, A_TOO, 0, 1)
    simulated.post_gather_if(first, 0, A_TOO + 8, array("Q", [1]), 1, b"", b"")
    simulated.wait()
    assert simulated.load(A_TOO + 8) == (there == 0)
    assert (simulated.result(first) == 0) == (there == 0)
    assert (simulated.result(second) == 0) == (there == 0)
    assert simulated.load(A_TOO) == (there == 0)


def test_a_late_verb_on_a_lost_node_fails_in_wait(simulated: SimulatedEndpoint) -> None:
    simulated.turn = scheduled = Scheduled(_1=IN_WAIT, _2=IN_WAIT)
    simulated.post_cas(A, 0, 1)
    simulated.post_cas(B, 0, 1)
    scheduled.gone = {0}
    with pytest.raises(NodeFailed):
        simulated.wait()
    assert order(simulated) == [B]
    scheduled.gone = set()
    simulated.wait()
    assert order(simulated) == [B]


def test_words_of_a_read_that_fails_where_it_is_posted_stay_without_meaning(
    simulated: SimulatedEndpoint,
) -> None:
    simulated.turn = scheduled = Scheduled()
    scheduled.gone = {1}
    found = words(1, 2)
    with pytest.raises(NodeFailed):
        simulated.post_read(B, found, 2)
    simulated.wait()
    assert found.tolist() == [POISON, POISON]


def send_all(endpoint: SimulatedEndpoint) -> None:
    """An operation leaves something to be done on two nodes, and then on the control segment."""
    endpoint.begin()
    endpoint.send_clear(A, 1)
    endpoint.send_clear(B, 1)
    endpoint.send_store(CONTROL, 0)
    endpoint.end()


@pytest.mark.parametrize(
    ("late", "returned", "expected"),
    [
        ({}, [A, B, CONTROL], [A, B, CONTROL, A_TOO]),
        ({"_1": IN_WAIT}, [B], [B, A, A_TOO]),
        ({"_2": IN_WAIT}, [A], [A, A_TOO]),
        ({"_3": IN_WAIT}, [A, B], [A, B, A_TOO]),
        ({"_1": IN_WAIT, "_2": IN_WAIT}, [], [A, A_TOO]),
    ],
)
def test_what_was_sent_may_be_done_after_the_operation_and_before_later_verbs_on_its_node(
    simulated: SimulatedEndpoint, late: dict[str, int], returned: list[int], expected: list[int]
) -> None:
    """The control segment comes last: what it says of the others holds."""
    simulated.turn = Scheduled(**late)
    send_all(simulated)
    assert order(simulated) == returned
    simulated.load(A_TOO)
    assert order(simulated) == expected
    simulated.load(CONTROL)
    done = [addr for addr in order(simulated) if addr != A_TOO]
    assert sorted(done[:-2]) == [A, B]
    assert done[-2:] == [CONTROL, CONTROL]


def test_the_pin_outlasts_what_is_posted_and_never_waited_for(
    simulated: SimulatedEndpoint,
) -> None:
    """A late CAS whose client was not pinned any more could meet a word that has come again."""
    simulated.turn = scheduled = Scheduled(_1=IN_WAIT)
    simulated.begin()
    simulated.post_cas(A, 0, 1)
    simulated.send_store(CONTROL, 0)
    assert order(simulated) == []
    simulated.end()
    simulated.load(CONTROL)
    assert order(simulated) == [A, CONTROL, CONTROL]
    simulated.trace.clear()
    simulated.turn = scheduled = Scheduled(_1=IN_WAIT)
    scheduled.dies = 2
    simulated.begin()
    simulated.post_cas(A, 1, 2)
    simulated.send_store(CONTROL, 0)
    with pytest.raises(Crashed):
        simulated.end()
    assert order(simulated) == []


def test_what_was_sent_is_lost_with_its_client_or_refused_by_a_lost_node(
    simulated: SimulatedEndpoint,
) -> None:
    late = {"_1": IN_WAIT, "_2": IN_WAIT}
    simulated.turn = scheduled = Scheduled(**late)
    send_all(simulated)
    scheduled.gone = {0}
    simulated.load(CONTROL)
    assert order(simulated) == [B, CONTROL, CONTROL]
    simulated.trace.clear()
    simulated.turn = scheduled = Scheduled(**late)
    send_all(simulated)
    scheduled.dies = 4
    with pytest.raises(Crashed):
        simulated.load(CONTROL)
    assert order(simulated) == [A]


@pytest.mark.parametrize("count", [-1, 0, 2, 1 << 61])
@pytest.mark.parametrize("verb", ["post_read", "post_write", "post_gather"])
def test_words_that_are_not_there_are_refused_where_they_are_posted(
    endpoint: Any, simulated: SimulatedEndpoint, verb: str, count: int
) -> None:
    """In the simulator, too: it would find a mistake that the shipped fabrics refuse."""
    some = words(1, 2, 3)[:1]
    for one in (endpoint, simulated):
        for late in ({}, {"_1": IN_WAIT}):
            if one is simulated:
                simulated.turn = Scheduled(**late)
            if verb == "post_gather":
                if count == 0:
                    continue  # of its bytes alone
                with pytest.raises(AddressError):
                    one.post_gather(64, some, count, b"", b"")
            else:
                with pytest.raises(AddressError):
                    getattr(one, verb)(64, some, count)
        one.wait()


def test_a_verb_that_fails_leaves_no_late_ones(simulated: SimulatedEndpoint) -> None:
    simulated.turn = scheduled = Scheduled(_1=IN_WAIT)
    simulated.post_cas(B, 0, 1)
    scheduled.gone = {0}
    with pytest.raises(NodeFailed):
        simulated.load(A)
    assert order(simulated) == [B]


def test_a_write_may_use_its_words_for_something_else_at_once(
    simulated: SimulatedEndpoint,
) -> None:
    simulated.turn = Scheduled(_1=IN_WAIT, _2=IN_WAIT)
    mine = words(3, 4)
    simulated.post_write(A, mine, 2)
    simulated.post_gather(address(1, 64), mine, 2, b"key", b"value")
    mine[0] = mine[1] = 0
    simulated.wait()
    assert (simulated.load(A), simulated.load(A_TOO)) == (3, 4)
    assert simulated.load(address(1, 64)) == 3


def test_late_verbs_are_departures_of_a_schedule() -> None:
    assert parse_schedule("1.0.12d3") == {Point(1, 0, 12): (Action(LATE, 3),)}
