"""Bank transfers by several processes, one of which is killed again and again.

`pool.transaction` calls a function: all its reads and writes happen at one moment, or nothing
happens, also when its process is killed in the midst of it. So the sum of all accounts never
changes.
Transactions are for stores of the kinds `rtx-sherman` and `rtx-race`, whose keys and values are
bytes.

    python examples/bank.py --seconds 5
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import signal
import sys
import time
from typing import Any

import limpet

ACCOUNTS = [b"account %d" % number for number in range(10)]
START = 100
CLERKS = 3
KILL_EVERY_S = 0.1


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def balance(tx: limpet.Transaction, store: Any, account: bytes) -> int:
    return int(tx.get(store, account))


def transfer(tx: limpet.Transaction, store: Any, source: bytes, target: bytes, amount: int) -> bool:
    """Move money from one account to another, if it is there; whether it was."""
    left = balance(tx, store, source) - amount
    if left < 0:
        return False
    tx.put(store, source, b"%d" % left)
    tx.put(store, target, b"%d" % (balance(tx, store, target) + amount))
    return True


def total(tx: limpet.Transaction, store: Any) -> int:
    """The sum of all accounts, as they are at one moment."""
    return sum(balance(tx, store, account) for account in ACCOUNTS)


def work(store: Any, number: int, deadline: float) -> None:
    """Make transfers until the deadline. Run by each clerk."""
    pool = store.pool
    made = pool.array("transfers", CLERKS, "q")
    while time.monotonic() < deadline:
        source, target = random.sample(ACCOUNTS, 2)
        amount = random.randint(1, START)
        order = functools.partial(
            transfer, store=store, source=source, target=target, amount=amount
        )
        if pool.transaction(order):
            made.add(number)


def run(pool: limpet.Pool, seconds: float) -> bool:
    store = pool.store("rtx-sherman", name="accounts")
    made = pool.array("transfers", CLERKS, "q")
    for account in ACCOUNTS:
        store.put(account, b"%d" % START)
    deadline = time.monotonic() + seconds

    def start(number: int) -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(store, number, deadline), daemon=True)
        process.start()
        return process

    sums = []
    kills = begun = 0
    clerks = [start(number) for number in range(CLERKS)]
    try:
        while goes_on(deadline):
            time.sleep(KILL_EVERY_S)
            if made[0] > begun:  # else it has hardly started
                clerks[0].kill()
                clerks[0].join()
                kills += 1
                begun = made[0]
                clerks[0] = start(0)
            sums.append(pool.transaction(lambda tx: total(tx, store)))
        for clerk in clerks:
            clerk.join(30)
        well = all(clerk.exitcode == 0 for clerk in clerks)
    finally:
        for clerk in clerks:
            clerk.kill()
            clerk.join()
    sums.append(pool.transaction(lambda tx: total(tx, store)))
    store.check()
    pool.recover()
    leaked = pool.audit()["leaked"]
    killed, *others = made
    print(f"{kills} kills; transfers by the clerk that is killed: {killed}, by others: {others}")
    print(f"sums of all accounts, while it went on and at the end: {sorted(set(sums))}")
    print({account.decode(): int(value) for account, value in store.items()})
    print(f"{leaked} bytes leaked")
    right = set(sums) == {START * len(ACCOUNTS)}
    return kills > 0 and sum(made) > 0 and right and well and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Bank transfers, and kills.")
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="16MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
