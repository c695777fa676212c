"""A channel that cannot be made, as memory is full: nothing is left of it, under its users least
of all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import nothing_leaked

import limpet
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.channels.array.array import Array
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.counter import Counter
from limpet.stores.channels.layout import DESCRIPTION_SIZE
from limpet.stores.channels.regions.catalogue import GIVEN_UP, MAKING, STATES, ChannelCatalogue

MAKERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda pool: pool.array("c", 8, stripes=2),
    "barrier": lambda pool: pool.barrier("c", 2),
    "condition": lambda pool: pool.condition("c"),
    "counter": lambda pool: pool.counter("c"),
    "deque": lambda pool: pool.deque("c", size=16),
    "event": lambda pool: pool.event("c"),
    "lock": lambda pool: pool.lock("c"),
    "queue": lambda pool: pool.queue("c", maxsize=16),
    "ring": lambda pool: pool.ring("c", size=4096),
    "rwlock": lambda pool: pool.rwlock("c"),
    "semaphore": lambda pool: pool.semaphore("c"),
}


def full_at(catalogue: ChannelCatalogue, number: int) -> Callable[..., Any]:
    """Its `region`; from call `number` on there is no room for a region that is not there."""
    calls = itertools.count()

    def region(name: str, size: int, *args: Any, **options: Any) -> Any:
        if next(calls) >= number:
            raise limpet.StoreFull(f"no room for {name!r}")
        return ChannelCatalogue.region(catalogue, name, size, *args, **options)

    return region


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_nothing_is_left_of_a_channel_that_cannot_be_made(
    pools: Any, kind: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools(nodes=nodes)
    channels = pool.channels
    catalogue = channels.catalogue
    for number in range(30):
        with monkeypatch.context() as patch:
            patch.setattr(catalogue, "region", full_at(catalogue, number))
            try:
                made = MAKERS[kind](pool)
            except limpet.StoreFull:
                made = None
        if made is not None:
            break
        assert channels.list() == []
        assert list(catalogue) == []
        pool.event("c").set()  # another one of its name can be made
        channels.remove("c")
    assert 0 < number < 30
    assert [one["name"] for one in pool.channels.list()] == ["c"]
    nothing_leaked(pool)


def test_memory_is_given_back_when_a_queue_has_no_room(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    store = pool.store("race")
    pool.counter("first")
    filler = 0
    with contextlib.suppress(limpet.StoreFull):
        for filler in itertools.count():
            store.insert(b"%d" % filler, bytes(1000))
    refused = []
    for number in range(2000):
        try:
            pool.queue(f"q{number}")
        except limpet.StoreFull:
            refused.append(f"q{number}")
            if len(refused) == 3:
                break
    assert len(refused) == 3
    assert not set(refused) & set(pool.channels.names())
    for key in range(filler):
        store.delete(b"%d" % key)
    assert pool.queue(refused[0], maxsize=100).maxsize == 100
    assert pool.lock(refused[1]).acquire()
    nothing_leaked(pool)


def race_for_room(pools: Any, monkeypatch: pytest.MonkeyPatch, steals: bool) -> tuple[Any, Any]:
    """Have a client that has no room meet one that has: the endpoints of both."""
    pool = pools()
    other = pools.again(pool)
    channels = pool.channels
    catalogue = channels.catalogue
    theirs = []
    calls = itertools.count()

    def region(name: str, size: int, *args: Any, **options: Any) -> Any:
        if next(calls) == 1:
            theirs.append(other.counter("c"))
            theirs[0].add(5)
            raise limpet.StoreFull("no room")
        return ChannelCatalogue.region(catalogue, name, size, *args, **options)

    def blind(value: int, state: int) -> int:
        return GIVEN_UP

    monkeypatch.setattr(catalogue, "region", region)
    if steals:
        monkeypatch.setattr(catalogue, "_decide", blind)
    try:
        mine: Any = pool.counter("c")
    except limpet.StoreFull as error:
        mine = error
    return mine, theirs[0]


def test_a_channel_that_another_client_had_room_for_stays(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = race_for_room(pools, monkeypatch, False)
    assert mine.value == theirs.value == 5


def test_without_the_state_it_is_removed_under_its_users(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = race_for_room(pools, monkeypatch, True)
    assert isinstance(mine, limpet.StoreFull)
    with pytest.raises(limpet.ChannelRemoved):
        theirs.add(1)


def word_of(counter: Counter) -> int:
    """Address of the word with the state of a channel."""
    return counter.mark_address + DESCRIPTION_SIZE


def test_a_channel_that_was_given_up_is_begun_anew(pools: Any) -> None:
    """A client that is killed after it has given up, and before it has removed the channel."""
    pool = pools()
    counter = pool.counter("c")
    counter.add(7)
    word = pool.endpoint.load(word_of(counter))
    assert word & STATES == 0
    pool.endpoint.store(word_of(counter), word | GIVEN_UP)
    other = pools.again(pool)
    assert other.channels.list() == []
    assert other.counter("c").value == 0
    with pytest.raises(limpet.ChannelRemoved):
        counter.add(1)
    nothing_leaked(pool)


@pytest.mark.parametrize("killed", [False, True])
def test_a_client_that_is_overtaken_by_one_that_gives_up_does_not_use_the_channel(
    pools: Any, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """It makes the channel anew. `killed`: the other one, before it has removed the channel."""
    pool = pools()
    other = pools.again(pool)
    channels = pool.channels
    catalogue = channels.catalogue
    confirm, overtaken = catalogue.confirm, []

    def late(channel: Any) -> bool:
        if not overtaken:
            overtaken.append(channel.mark)
            if killed:
                word = pool.endpoint.load(word_of(channel))
                pool.endpoint.store(word_of(channel), word ^ MAKING | GIVEN_UP)
            else:
                assert not other.channels.catalogue.give_up("c", channel.mark)
        return bool(confirm(channel))

    monkeypatch.setattr(catalogue, "confirm", late)
    assert pool.counter("c").mark not in overtaken
    assert pool.counter("c").add(3) == other.counter("c").value == 3
    channels.remove("c")
    assert channels.list() == []
    nothing_leaked(pool)


def give_up_late(pools: Any, patch: pytest.MonkeyPatch, blind: bool) -> tuple[Any, Any]:
    """A client has no room; before it gives up, another one removes the channel, and is making one
    of the same name. The catalogue of that one, and its channel. `blind`: no mark is compared."""
    pool = pools(nodes=2)
    other = pools.again(pool)
    channels, their_channels = pool.channels, other.channels
    catalogue, others = channels.catalogue, their_channels.catalogue
    give_up, theirs = catalogue.give_up, []

    def meet(name: str, making: int) -> bool:
        if not making or theirs:
            return bool(give_up(name, making))
        their_channels.remove("c")
        with pytest.MonkeyPatch.context() as making_it:
            making_it.setattr(others, "confirm", lambda channel: True)
            theirs.append(other.counter("c"))
        return bool(give_up(name, others.mark("c") if blind else making))

    patch.setattr(catalogue, "region", full_at(catalogue, 1))
    patch.setattr(catalogue, "give_up", meet)
    with pytest.raises(limpet.StoreFull):
        pool.counter("c")
    assert channels.catalogue is catalogue
    assert their_channels.catalogue is others
    return others, theirs[0]


def test_a_client_gives_up_the_channel_that_it_was_making_and_no_other(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, theirs = give_up_late(pools, monkeypatch, False)
    assert others.confirm(theirs)
    assert theirs.add(3) == 3


def test_a_client_that_gives_up_by_name_is_seen(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, theirs = give_up_late(pools, monkeypatch, True)
    with pytest.raises(limpet.ChannelRemoved):
        others.confirm(theirs)


@pytest.mark.parametrize("by_name", [False, True])
def test_an_array_without_room_is_removed_and_no_other_of_its_name(
    pools: Any, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """`by_name`: a known-bad variant, which removes the channel of another client, in use."""
    pool = pools(nodes=2)
    other = pools.again(pool)
    channels = pool.channels
    catalogue = channels.catalogue
    take_back, theirs = catalogue.take_back, []

    def meet(channel: Any) -> None:
        other.channels.remove("c")
        theirs.append(other.counter("c"))
        theirs[0].add(5)
        if by_name:
            channels.remove("c")
        else:
            take_back(channel)

    monkeypatch.setattr(catalogue, "region", full_at(catalogue, 3))
    monkeypatch.setattr(catalogue, "take_back", meet)
    with pytest.raises((limpet.StoreFull, limpet.StoreMismatch)):
        pool.array("c", 8, stripes=2)
    assert theirs[0].removed() == by_name


def test_a_channel_whose_maker_was_killed_is_completed(pools: Any) -> None:
    pool = pools(nodes=2)
    counter = pool.counter("c")
    word = pool.endpoint.load(word_of(counter))
    pool.endpoint.store(word_of(counter), word | MAKING)
    other = pools.again(pool).counter("c")
    assert pool.endpoint.load(word_of(counter)) == word
    assert other.mark_address >> NODE_SHIFT == counter.mark_address >> NODE_SHIFT
    assert counter.add(1) == other.value == 1


class Over(Channel):
    """A channel that uses another one."""

    made = 0

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        Over.made += 1
        super().__init__(manager, name, parent, size=64, kind="over")
        with manager.other.operation():
            pass


class Pair(Channel):
    """A channel with an array as a part."""

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, size=64, kind="pair")
        self.data = Array(manager, "data", self, shape=[1 << 17], dtype="<u8", stripes=2)


def test_a_channel_that_uses_a_removed_one_is_not_made_for_ever(pools: Any) -> None:
    pool = pools()
    channels = pool.channels
    channels.other = channels.open(Channel, "other", size=64, kind="o")
    channels.remove("other")
    with pytest.raises(limpet.ChannelRemoved, match="other"):
        channels.open(Over, "x")
    assert Over.made == 2
    assert channels.names() == []


def test_a_part_that_a_dead_client_has_given_up_is_made_anew(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client died before it gave up the channel itself."""

    class Killed(BaseException):
        pass

    def killed(*rest: Any) -> None:
        raise Killed

    def no_room(*rest: Any) -> None:
        raise limpet.StoreFull("no room")

    pool = pools(nodes=2, node_size="8MiB")
    with monkeypatch.context() as patch:
        patch.setattr(Array, "_stripe", no_room)
        patch.setattr(ChannelCatalogue, "give_up", killed)
        with pytest.raises(Killed):
            pool.channels.open(Pair, "p")
    assert pool.channels.open(Pair, "p").data.shape == (1 << 17,)
