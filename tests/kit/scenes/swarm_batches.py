"""Batches of SWARM: the variants of their rules, and the scenes and programs that show them."""

from __future__ import annotations

import functools
from typing import Any, Final

from kit.mutants.swarm import Mutant
from kit.mutants.uncompiled import Change, replaced
from kit.puppets import Puppet, ShiftedPool, verb_on
from kit.registers import Scene
from kit.scenes.swarm import cut_off_at_the_word_of_m
from limpet.stores.swarm.layout import DONE

HOUR_US: Final = 3_600_000_000


def takes_what_it_sees(self: Any, register: Any) -> bool:
    """A batch returns the greatest tuple it has read, wherever that is."""
    return bool(register.quorum.arrived() == DONE)


def never_stale(self: Any, w: int, held: int, outcome: int, wrote: int) -> int:
    """A guess is taken for good, whatever was read beside it."""
    self._verify_own(w, held)
    return DONE


def refused_is_done(written: Any) -> Any:
    """A row that is not in order is taken for written."""

    def run(self: Any, word: int, buffer: Any) -> int:
        written(self, word, buffer)
        return DONE

    return run


def _minority_is_lost(pools: Any) -> None:
    """A value is read that only the first replica has, whose node is lost then."""
    scene = Scene(pools, 3)
    writer, reader, later = scene.clients
    writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    (seen,) = reader.store.get_many([b"k"])
    scene.pool.fail_node(scene.nodes[0])
    (seen_later,) = later.store.get_many([b"k"])
    assert writer.go()
    assert seen == seen_later
    assert later.store.get_many([b"k"]) == [b"new"]


def _clock_is_behind(pools: Any) -> None:
    """The guesses of a batch are below values that another client has written."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=50)
    late_pool = pools.keep(ShiftedPool.open(pool.url))
    late_pool.endpoint.shift = -HOUR_US
    late = late_pool.store("swarm", name="test")
    late.put_many([(b"j", b"0"), (b"k", b"0")])
    late.get_many([b"j", b"k"])
    store.update(b"k", b"ahead")
    late.put_many([(b"j", b"late"), (b"k", b"late")])
    assert late.get_many([b"j", b"k"]) == store.get_many([b"j", b"k"]) == [b"late"] * 2


def _pointer_is_in_use(pools: Any) -> None:
    """A first update was cut off when a pointer named its buffer and no word of M led there. So the
    row is taken for empty, and a batch finds the pointer in use. A node may be lost after it."""
    scene = Scene(pools, 1)
    writer = Puppet(pools, scene.pool.url, "swarm")
    writer.store.put(b"j", b"")
    cut_off_at_the_word_of_m(scene, writer)
    for value in (b"of a batch", b"of another"):
        writer.store.put_many([(b"j", value), (b"k", value)])
    scene.pool.fail_node(scene.nodes[1])
    assert writer.store.get(b"k") == scene.store.get(b"k") == value


STEPS: Final = (
    (
        Mutant(
            "batch-reads-a-minority", (),
            (replaced("swarm/batches", "BatchReads.is_settled", takes_what_it_sees),),
        ),
        _minority_is_lost,
    ),
    (
        Mutant(
            "batch-takes-its-guesses-for-good", (),
            (replaced("swarm/safe_guess", "SafeGuess._conclude", never_stale),),
        ),
        _clock_is_behind,
    ),
    (
        Mutant(
            "batch-takes-refused-rows-for-written", (),
            (Change("swarm/replica", "Replica.written", refused_is_done),),
        ),
        _pointer_is_in_use,
    ),
)  # fmt: skip


def ends_at_the_first(post_all: Any) -> Any:
    """A batch goes on while verbs that were posted have not happened, if a node is lost."""

    def run(self: Any, batch: Any) -> bool:
        posted = self._posted(batch)
        if posted:
            self.endpoint.wait()
        return bool(posted)

    return run


EXPLORED: Final = (
    Mutant(
        "goes-on-before-all-has-happened", ("history", "node", "error", "check"),
        (Change("swarm/batches", "BatchWrites._post_all", ends_at_the_first),),
        exploration={"program": "pa mab ga|pb mab gb|ga gb", "node_failures": 1},
    ),
)  # fmt: skip
