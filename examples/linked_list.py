"""A sorted linked list on objects of one's own, changed by several processes. One of them is
killed again and again.

`pool.objects` is an array of objects. Each is a node here: the number of the next node, and a
value. Object 0 is the head of the list, object 1 that of the free nodes. An insert takes a free
node, and links it between two others; a removal gives it back. Each is one transaction, so each
node is always in one of the two lists, whoever is killed and when.

    python examples/linked_list.py --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import struct
import sys
import time
from typing import Any

import limpet

NODES = 64
HEAD, FREE = 0, 1
VALUES = 40
WORKERS = 3
KILL_EVERY_S = 0.1
NODE = struct.Struct("<QQ")
"""The number of the next node, 0 at the end; and the value."""

ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal."""
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def insert(tx: limpet.Transaction, nodes: Any, value: int) -> bool:
    """Insert a value, if it is not there and there is a free node; whether it did."""
    at, before = place(tx, nodes, value)
    after, own = NODE.unpack(tx.read(nodes[at]))
    if before == value:
        return False
    free, _ = NODE.unpack(tx.read(nodes[FREE]))
    if not free:
        return False
    rest, _ = NODE.unpack(tx.read(nodes[free]))
    tx.write(nodes[FREE], NODE.pack(rest, 0))
    tx.write(nodes[free], NODE.pack(after, value))
    tx.write(nodes[at], NODE.pack(free, own))
    return True


def remove(tx: limpet.Transaction, nodes: Any, value: int) -> bool:
    """Remove a value; whether it was there."""
    at, found = place(tx, nodes, value)
    if found != value:
        return False
    gone, own = NODE.unpack(tx.read(nodes[at]))
    after, _ = NODE.unpack(tx.read(nodes[gone]))
    free, _ = NODE.unpack(tx.read(nodes[FREE]))
    tx.write(nodes[at], NODE.pack(after, own))
    tx.write(nodes[gone], NODE.pack(free, 0))
    tx.write(nodes[FREE], NODE.pack(gone, 0))
    return True


def place(tx: limpet.Transaction, nodes: Any, value: int) -> tuple[int, int | None]:
    """The last node with a smaller value, and the value after it; None: there is none."""
    at = HEAD
    while True:
        after, _ = NODE.unpack(tx.read(nodes[at]))
        if not after:
            return at, None
        _, found = NODE.unpack(tx.read(nodes[after]))
        if found >= value:
            return at, found
        at = after


def values(tx: limpet.Transaction, nodes: Any, head: int) -> list[tuple[int, int]]:
    """The nodes of a list, and their values, at one moment."""
    listed = []
    at, _ = NODE.unpack(tx.read(nodes[head]))
    while at:
        after, value = NODE.unpack(tx.read(nodes[at]))
        listed.append((at, value))
        at = after
    return listed


def is_sound(tx: limpet.Transaction, nodes: Any) -> bool:
    """Whether the values are in order, and each node is in one of the lists."""
    used, free = values(tx, nodes, HEAD), values(tx, nodes, FREE)
    listed = [value for _, value in used]
    numbers = sorted(number for number, _ in used + free)
    return listed == sorted(set(listed)) and numbers == list(range(2, NODES))


def work(pool: limpet.Pool, number: int, deadline: float) -> None:
    """Insert and remove until the deadline. Run by each worker."""
    nodes = pool.objects("nodes")
    made = pool.array("changes", WORKERS, "q")
    while time.monotonic() < deadline:
        value, change = random.randint(1, VALUES), random.choice((insert, remove))
        if pool.transaction(lambda tx: change(tx, nodes, value)):  # noqa: B023
            made.add(number)


def run(pool: limpet.Pool, seconds: float) -> bool:
    nodes = pool.objects("nodes", NODES, initial=bytes(NODE.size))

    def fill(tx: limpet.Transaction) -> None:
        for number in range(FREE, NODES - 1):
            tx.write(nodes[number], NODE.pack(number + 1, 0))

    pool.transaction(fill)
    made = pool.array("changes", WORKERS, "q")
    deadline = time.monotonic() + seconds

    def start(number: int) -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(pool, number, deadline), daemon=True)
        process.start()
        return process

    looks = bad = kills = begun = 0
    workers = [start(number) for number in range(WORKERS)]
    try:
        while goes_on(deadline):
            time.sleep(KILL_EVERY_S)
            if made[0] > begun:  # else it has hardly started
                workers[0].kill()
                workers[0].join()
                kills += 1
                begun = made[0]
                workers[0] = start(0)
            looks += 1
            bad += not pool.transaction(lambda tx: is_sound(tx, nodes))
        for worker in workers:
            worker.join(30)
        well = all(worker.exitcode == 0 for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    bad += not pool.transaction(lambda tx: is_sound(tx, nodes))
    pool.recover()
    leaked = pool.audit()["leaked"]
    killed, *others = made
    print(f"{kills} kills; changes by the worker that is killed: {killed}, by others: {others}")
    print(f"{looks + 1} looks at the list, {bad} of them at one that was broken")
    print([value for _, value in pool.transaction(lambda tx: values(tx, nodes, HEAD))])
    print(f"{leaked} bytes leaked")
    return kills > 0 and sum(made) > 0 and bad == 0 and well and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A linked list, and kills.")
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="16MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
