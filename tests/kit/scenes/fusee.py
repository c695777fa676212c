"""Scenes of FUSEE: its traps, and steps of our own, each of which a variant leaves out."""

from __future__ import annotations

from typing import Any, Final

import limpet
from kit.mutants.fusee import (
    ACTS_EARLY,
    ANNOUNCED_IN_AN_OLD_VIEW,
    ANNOUNCED_LATE,
    HELP_UNCHECKED,
    INSERT_UNCHECKED,
    LARGE,
    MARKED_AT_ONCE,
    NEVER_TOLD,
    NEVER_VOIDS,
    OBJECT_BEFORE_SLOT,
    READS_ANYTHING,
    READS_WAIT,
    RULES_UNCHECKED,
    SAME_OBJECT,
    SWAPS_BLINDLY,
    UNDECIDED_KEPT,
    VOIDS_FIRST_BACKUP_FIRST,
    WITHOUT,
    backup_of,
    crowded,
    room_of,
)
from kit.puppets import Puppet, after, verb_on, verb_on_address
from limpet.shm.endpoint.layout import LEADER, NODE_SHIFT, NODE_STATES, SLOTS_USED, VIEW

SMALL, MIDDLE, BIG = b"s", b"m" * 60, b"B" * 120
"""Of bigger objects the words are greater: of several proposals, the smallest one wins."""


class Scene:
    """A store with one key, k, and some clients that go on when they are told to."""

    def __init__(self, pools: Any, replicas: int, clients: int, nodes: int = 0) -> None:
        with crowded(LARGE):
            pool = pools(nodes=nodes or replicas, block_size=16 << 10)
            self.store = pool.store("fusee", name="test", capacity=64, replicas=replicas)
        self.clients = [Puppet(pools, pool.url, "fusee") for _ in range(clients)]
        for client in self.clients:
            for value in (SMALL, MIDDLE, BIG):  # so that they have memory at hand
                client.store.put(b"k", value)
        self.store.put(b"k", b"old")
        for client in self.clients:
            assert client.store.get(b"k") == b"old"

    def link(self) -> int:
        """Which object the key has."""
        (reference,) = self.store.pool.exclusively(self.store.replicated_check.pairs)
        return int(reference)


def _help_meets_the_next_round(pools: Any) -> None:
    """Backups are read in the midst of the next round, as if they were of the old one."""
    scene = Scene(pools, 3, 3)
    winner, helper, later = scene.clients
    winner.begin(lambda: winner.store.update(b"k", SMALL), verb_on("cas", number=2))
    # it has lost, has waited for long enough, and is about to look at the first backup
    assert not helper.begin(lambda: helper.store.update(b"k", MIDDLE), verb_on("load", node=1))
    assert winner.go()
    later.begin(lambda: later.store.update(b"k", BIG), verb_on("cas", number=2))
    assert helper.go()
    assert later.go()
    scene.store.check()
    assert scene.store.get(b"k") == BIG


def _rules_meet_the_next_round(pools: Any) -> None:
    """The values of the backups are of two rounds, and the smallest is no client's proposal."""
    scene = Scene(pools, 3, 2)
    late, fast = scene.clients
    assert not late.begin(lambda: late.store.update(b"k", MIDDLE), verb_on("cas", number=2))
    fast.store.update(b"k", SMALL)
    fast.store.update(b"k", BIG)
    assert late.go()
    scene.store.check()
    assert scene.store.get(b"k") == BIG


def _object_before_the_slot(pools: Any) -> None:
    """The memory of an old object is read, and then is used again and linked again."""
    scene = Scene(pools, 2, 2)
    reader, writer = scene.clients
    used_again = False
    for _ in range(100):
        writer.store.update(b"k", b"old" + bytes(3000))
        assert reader.store.get(b"k")
        known = scene.link()
        writer.store.update(b"k", b"between" + bytes(3000))
        # it has found no memory, has made some ready, and begins again
        again = verb_on_address("load", VIEW, 2)
        while writer.begin(lambda: writer.store.update(b"k", b"new" + bytes(3000)), again):
            again = verb_on_address("load", VIEW, 2)
        # the first word that it loads is the directory's
        reader.begin(lambda: reader.store.get(b"k"), verb_on("load", number=2))
        assert writer.go()
        used_again = scene.link() == known
        assert reader.go()
        assert not reader.result.startswith(b"old")
        if used_again:
            break
    assert used_again


def _one_stands_in_the_slot(pools: Any) -> None:
    """An insert that has the first backup stands still, and another one needs the slot."""
    scene = Scene(pools, 2, 2)
    still, other = scene.clients
    scene.store.delete(b"k")
    assert not still.begin(lambda: still.store.insert(b"k", SMALL), verb_on("cas", number=2))
    ended = other.begin(lambda: other.store.insert(b"k", MIDDLE), verb_on("cas", number=60))
    assert still.go()
    assert ended or other.go()
    assert ended
    assert still.result is limpet.KeyExists
    assert scene.store.get(b"k") == MIDDLE
    scene.store.check()


def _void_meets_the_next_insert(pools: Any) -> None:
    """A round is void, and one backup is cleared, when the next one begins in the same slot."""
    scene = Scene(pools, 3, 3)
    still, voider, later = scene.clients
    scene.store.delete(b"k")
    slot = room_of(scene.store, b"k")
    backups = [backup_of(scene.store, slot, k) for k in (1, 2)]
    assert not still.begin(lambda: still.store.insert(b"k", SMALL), verb_on_address("cas", slot))
    after_void: list[int] = []

    def second_clearing(verb: str, address: int) -> bool:
        if verb == "cas" and (address == slot or (after_void and address in backups)):
            after_void.append(address)
        return len(after_void) == 3

    assert not voider.begin(lambda: voider.store.insert(b"k", MIDDLE), second_clearing)
    assert not later.begin(lambda: later.store.insert(b"k", BIG), verb_on_address("cas", slot))
    voider.go(verb_on("read_words"))
    assert later.go()
    assert voider.go()
    assert still.go()
    scene.store.check()
    assert (later.result, voider.result) == (None, limpet.KeyExists)
    assert still.result is limpet.KeyExists
    assert scene.store.get(b"k") == BIG


def _insert_meets_the_next_round(pools: Any) -> None:
    """It has the first backup, of a round that is void, and meets a proposal of the next one."""
    scene = Scene(pools, 3, 3)
    still, voider, later = scene.clients
    scene.store.delete(b"k")
    slot = room_of(scene.store, b"k")
    first, second = (backup_of(scene.store, slot, k) for k in (1, 2))
    in_vain = [("cas", first), ("cas", second)]
    assert not still.begin(lambda: still.store.insert(b"k", SMALL), verb_on_address("cas", second))
    voided = after(*in_vain, ("cas", slot), ("cas", second), then=("cas", first))
    assert not voider.begin(lambda: voider.store.insert(b"k", MIDDLE), voided)
    proposed = after(*in_vain, then=("load", slot))
    assert not later.begin(lambda: later.store.insert(b"k", BIG), proposed)
    over = still.go(after(then=("cas", second)))
    assert not voider.go(after(*in_vain, then=("cas", second)))
    if not over:
        over = still.go(verb_on_address("cas", slot))
    assert voider.go()
    assert over or still.go()
    assert later.go()
    results = [client.result for client in scene.clients]
    assert sorted(results, key=bool) == [None, limpet.KeyExists, limpet.KeyExists]
    scene.store.check()
    assert scene.store.get(b"k") == (SMALL, MIDDLE, BIG)[results.index(None)]


def _filled(scene: Scene) -> list[bytes]:
    """Keys that fill slots beside that of the key."""
    fillers = [b"another %d" % number for number in range(30)]
    for filler in fillers:
        scene.store.insert(filler, b"")
    return fillers


def _make_other_room(scene: Scene, fillers: list[bytes], slot: int) -> None:
    """Delete fillers until the key's next slot is another one than `slot`."""
    for filler in fillers:
        if room_of(scene.store, b"k") == slot:
            scene.store.delete(filler)
    assert room_of(scene.store, b"k") != slot


def _node_lost_beside_an_undecided_insert(pools: Any) -> None:
    """An insert is on the backup, its key has come into another slot, and the primary is lost."""
    scene = Scene(pools, 2, 1)
    (late,) = scene.clients
    scene.store.delete(b"k")
    fillers = _filled(scene)
    room = room_of(scene.store, b"k")
    late.begin(lambda: late.store.insert(b"k", SMALL), verb_on("cas"))
    _make_other_room(scene, fillers, room)
    scene.store.insert(b"k", MIDDLE)
    assert not late.go(verb_on("read_words", node=1))
    scene.store.pool.fail_node(0)
    assert late.go()
    scene.store.check()
    assert late.result is limpet.KeyExists
    assert scene.store.get(b"k") == MIDDLE


def _node_lost_beside_an_insert_that_had_failed(pools: Any) -> None:
    """An object that was almost linked is proposed again, and the key is in another slot by now."""
    scene = Scene(pools, 2, 2)
    late, other = scene.clients
    scene.store.delete(b"k")
    fillers = _filled(scene)
    slot = room_of(scene.store, b"k")
    proposal = verb_on_address("cas", backup_of(scene.store, slot, 1))
    assert not late.begin(lambda: late.store.insert(b"k", SMALL), verb_on_address("cas", slot))
    other.store.insert(b"k", MIDDLE)
    other.store.delete(b"k")
    assert not late.go(proposal)
    _make_other_room(scene, fillers, slot)
    scene.store.insert(b"k", BIG)
    assert not late.go(verb_on("read_words", node=1))
    scene.store.pool.fail_node(0)
    assert late.go()
    scene.store.check()
    assert late.result is limpet.KeyExists
    assert scene.store.get(b"k") == BIG


def _view_changes_beside_an_undecided_insert(pools: Any) -> None:
    """The primary is lost; what its backup has is no value before the change is over."""
    scene = Scene(pools, 2, 2)
    late, reader = scene.clients
    scene.store.delete(b"k")
    late.begin(lambda: late.store.insert(b"k", SMALL), verb_on("read_words", node=1))
    scene.store.pool.fail_node(0)
    reader.store.forget()
    waits = not reader.begin(lambda: reader.store.get(b"k"), verb_on_address("load", LEADER))
    assert late.go()
    assert not waits or reader.go()
    assert waits
    assert reader.result == scene.store.get(b"k") == SMALL


def _node_back_when_a_client_has_looked(pools: Any) -> None:
    """The client has seen the primary being replaced; the next moment, all others count it."""
    scene = Scene(pools, 2, 2)
    late, leader = scene.clients
    scene.store.pool.fail_node(0)
    late.store.put(b"k", b"old")  # so that it has memory at hand on the other node
    put_back = verb_on_address("cas", NODE_STATES, 2)
    assert not leader.begin(lambda: leader.pool.replace_node(0), put_back)
    has_looked = verb_on_address("load", NODE_STATES, 2)
    assert not late.begin(lambda: late.store.update(b"k", SMALL), has_looked)
    assert leader.go()
    assert late.go()
    assert scene.store.get(b"k") == SMALL
    scene.store.check()


def _read_beside_a_change_of_the_view(pools: Any) -> None:
    """One client stands still in an update, and one in the change of the view; then one in the
    replacement. The key has no replica on the node that it is about."""
    scene = Scene(pools, 2, 3, nodes=3)
    still, leader, reader = scene.clients
    waits = verb_on_address("load", LEADER)
    assert not still.begin(lambda: still.store.update(b"k", BIG), verb_on("cas"))
    scene.store.pool.fail_node(2)
    leader.store.forget()
    quiesces = verb_on_address("load", SLOTS_USED)
    assert not leader.begin(lambda: leader.store.put(b"k", MIDDLE), quiesces)
    assert scene.store.pool.view.unsettled()
    for work in (reader.store.get, reader.store.__contains__, lambda k: reader.store.get_many([k])):
        assert reader.begin(lambda work=work: work(b"k"), waits)  # type: ignore[misc]
        assert reader.result in (b"old", True, [b"old"])
    assert reader.begin(lambda: [*iter(reader.store)], waits)
    assert reader.result == [b"k"]
    assert still.go()
    assert reader.begin(lambda: reader.store.get(b"k"), waits)
    assert reader.result == BIG
    assert leader.go()
    put_back = verb_on_address("cas", NODE_STATES + 16, 2)
    assert not leader.begin(lambda: leader.pool.replace_node(2), put_back)
    assert scene.store.pool.view.unsettled()
    assert reader.begin(lambda: reader.store.get(b"k"), waits)
    assert reader.result == MIDDLE
    assert leader.go()
    scene.store.check()


def _node_back_when_a_reader_has_looked(pools: Any) -> None:
    """The reader has seen the primary being replaced; the next moment it is a backup that it reads,
    which has what an update proposes."""
    scene = Scene(pools, 2, 3)
    writer, leader, reader = scene.clients
    scene.store.pool.fail_node(0)
    writer.store.put(b"k", b"old")
    put_back = verb_on_address("cas", NODE_STATES, 2)
    assert not leader.begin(lambda: leader.pool.replace_node(0), put_back)

    def has_looked(verb: str, address: int) -> bool:
        return verb == "load" and (address == LEADER or address >> NODE_SHIFT == 1)

    assert not reader.begin(lambda: reader.store.get(b"k"), has_looked)
    assert leader.go()
    writer.store.put(b"k", b"old")  # so that it has memory at hand on the node that is back
    assert not writer.begin(lambda: writer.store.update(b"k", SMALL), verb_on("cas", node=0))
    assert reader.go()
    assert reader.result == b"old"
    assert writer.go()
    assert scene.store.get(b"k") == SMALL
    scene.store.check()


def _update_loses_to_a_swap(pools: Any, replaced: bool = False) -> None:
    """The swap has all backups; the update cannot have happened before it, nor is it lost."""
    scene = Scene(pools, 3, 2)
    swapper, other = scene.clients
    if replaced:
        _replace_behind(scene, swapper)
    primary = verb_on("cas", number=3)
    assert not swapper.begin(lambda: swapper.store.swap(b"k", b"old", SMALL), primary)
    assert other.begin(lambda: other.store.update(b"k", MIDDLE), verb_on("cas", number=60))
    assert swapper.go()
    assert swapper.result is True
    assert scene.store.get(b"k") == MIDDLE
    scene.store.check()


def _replace_behind(scene: Scene, swapper: Puppet) -> None:
    """A node is lost and replaced; the first that the swapper does in the store after that is its
    first swap."""
    scene.store.pool.fail_node(0)
    swapper.store.put(b"k", b"old")
    scene.store.pool.replace_node(0)
    assert not swapper.store.swap(b"another key", b"value", b"other")
    for client in scene.clients:
        for value in (SMALL, MIDDLE, b"old"):  # so that they have memory at hand
            client.store.put(b"k", value)


def _update_loses_to_a_swap_after_a_replacement(pools: Any) -> None:
    _update_loses_to_a_swap(pools, True)


def _swap_loses_to_an_update(pools: Any) -> None:
    scene = Scene(pools, 3, 2)
    other, swapper = scene.clients
    assert not other.begin(lambda: other.store.update(b"k", MIDDLE), verb_on("cas", number=3))
    swap = verb_on("cas", number=60)
    assert swapper.begin(lambda: swapper.store.swap(b"k", b"old", SMALL), swap)
    assert other.go()
    assert swapper.result is False
    assert scene.store.get(b"k") == MIDDLE
    scene.store.check()


STEPS: Final = (
    (NEVER_TOLD, _update_loses_to_a_swap),
    (ANNOUNCED_LATE, _update_loses_to_a_swap),
    (ANNOUNCED_IN_AN_OLD_VIEW, _update_loses_to_a_swap_after_a_replacement),
    (SWAPS_BLINDLY, _swap_loses_to_an_update),
    (OBJECT_BEFORE_SLOT, _object_before_the_slot),
    (RULES_UNCHECKED, _rules_meet_the_next_round),
    (HELP_UNCHECKED, _help_meets_the_next_round),
    (NEVER_VOIDS, _one_stands_in_the_slot),
    (VOIDS_FIRST_BACKUP_FIRST, _void_meets_the_next_insert),
    (INSERT_UNCHECKED, _insert_meets_the_next_round),
    (SAME_OBJECT, _node_lost_beside_an_insert_that_had_failed),
    (UNDECIDED_KEPT, _node_lost_beside_an_undecided_insert),
    (ACTS_EARLY, _view_changes_beside_an_undecided_insert),
    (WITHOUT, _node_back_when_a_client_has_looked),
    (MARKED_AT_ONCE, _node_lost_beside_an_undecided_insert),
    (READS_WAIT, _read_beside_a_change_of_the_view),
    (READS_ANYTHING, _node_back_when_a_reader_has_looked),
)
