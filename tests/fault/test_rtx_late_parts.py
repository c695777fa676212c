"""A transaction with so many slots on another memory node than its log's that their part comes late
(stores/transactions/log.py): the log names it only when it is written."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import pytest
from kit.processes import gather
from kit.stores import sound

from limpet.fault.explore.schedule import IN_WAIT
from limpet.shm.endpoint.fabric import BUILD, hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.simulated import WRITE, SimulatedEndpoint
from limpet.stores.pool import Pool
from limpet.stores.transactions.layout import LATE_SIZE
from limpet.stores.transactions.parts import part_size

pytestmark = pytest.mark.either_build("the same lines on either build")

SLOTS: Final = LATE_SIZE // 24 + 1
TURNS: Final = 8 if BUILD == "compiled" else 3


class FabricPool(Pool):
    endpoint_class = SimulatedEndpoint


def test_a_kill_while_a_part_is_on_its_way_frees_nothing_that_is_linked(pools: Any) -> None:
    """On a fabric, the log's node may have done what was posted, and the part's not yet."""
    pool = pools(nodes=2, node_size="1MiB")
    store = pool.store("rtx-race", name="test", capacity=1000)
    of_node: tuple[list[bytes], list[bytes]] = ([], [])
    for number in range(4 * SLOTS):
        key = b"%d" % number
        of_node[hash64(key) >> 63].append(key)
    keys = [of_node[0][0], *of_node[1][:SLOTS]]
    assert len(keys) == SLOTS + 1
    assert part_size(SLOTS) > LATE_SIZE

    def client() -> None:
        mine = FabricPool.open(pool.url)
        store = mine.store("rtx-race", name="test")

        def change(value: bytes) -> None:
            mine.transaction(lambda tx: [tx.put(store, key, value) for key in keys])

        for number in range(TURNS):  # so that the part is where other parts were
            change(b"%d" % number)

        def turn(endpoint: Any, verb: str, address: int, words: int) -> int:
            if verb == WRITE and address >> NODE_SHIFT == 1:
                if endpoint.phase.posting:
                    return -IN_WAIT
                os.kill(os.getpid(), signal.SIGKILL)
            return words

        mine.endpoint.turn = turn
        change(b"last")

    with pytest.raises(AssertionError, match="ended with -9"):
        gather(client)
    sound(store)
    assert store.get_many(keys) == [b"%d" % (TURNS - 1)] * len(keys)
