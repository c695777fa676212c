"""A channel of one's own: a high-water mark, which processes raise and wait for.

`HighWater` is one word that only ever goes up, such as the number of the newest version, or of the
last entry that is written. A process that is killed has raised the mark, or not; there is nothing
to repair, and no kind to register: the process that opens a channel names its class.

Then loggers write numbered entries and are killed, one after another, while this process waits for
the mark.

    python examples/own_channel.py --seconds 3
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from typing import Any

import limpet
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.waiting import Waiting, deadline_after, still_us

LOGGERS = 3


class HighWater(Channel):
    """The highest number to which any process has raised the mark; 0 at first.

    In memory, from `address` on: the mark, and in the next cache line the sleepers that wait until
    it rises.
    """

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, size=2 * LINE, kind="high_water")
        several_hosts = self.pool.parameters.multi_host
        self.sleepers = Waiting(self.endpoint, self.address + LINE, several_hosts)

    @property
    def level(self) -> int:
        """The mark."""
        with self.operation():
            return int(self.endpoint.load(self.address))

    def rise(self, level: int) -> bool:
        """Raise the mark to `level`; False: it is as high already, or higher."""
        with self.operation():
            before = self.endpoint.load(self.address)
            while before < level:
                seen = self.endpoint.cas(self.address, before, level)
                if seen == before:
                    self.sleepers.wake()
                    return True
                before = seen
            return False

    def wait_for(self, level: int, timeout: float | None = None) -> bool:
        """Wait until the mark is at least `level`, at most `timeout` seconds; whether it is."""
        deadline = deadline_after(timeout)
        while True:
            with self.operation():
                token = self.sleepers.prepare()  # before the look: a later rise wakes us
                if self.endpoint.load(self.address) >= level:
                    return True
            left_us = still_us(deadline)
            if not left_us:
                return False
            self.sleepers.sleep(token, left_us)


# ---- the channel in use ----------------------------------------------------------------------


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def log(pool: limpet.Pool, number: int, deadline: float) -> None:
    """Write entries with numbers of this logger's own, and raise the mark for each."""
    mark = pool.channels.open(HighWater, "written")
    noted = pool.array("noted", LOGGERS, "q")
    entry = noted[number] or number - LOGGERS + 1
    while time.monotonic() < deadline:
        entry += LOGGERS
        mark.rise(entry)
        noted[number] = entry
        time.sleep(0.0005)


def run(pool: limpet.Pool, seconds: float) -> bool:
    mark = pool.channels.open(HighWater, "written")
    noted = pool.array("noted", LOGGERS, "q")
    deadline = time.monotonic() + seconds

    def start(number: int) -> multiprocessing.Process:
        arguments = (pool, number, deadline)
        process = multiprocessing.Process(target=log, args=arguments, daemon=True)
        process.start()
        return process

    kills = waits = fell = 0
    level = mark.level
    loggers = [start(number) for number in range(LOGGERS)]
    try:
        while goes_on(deadline):
            waits += mark.wait_for(level + 20, timeout=0.1)
            fell += mark.level < level
            level = mark.level
            if waits >= 2 * (kills + 1):
                victim = kills % LOGGERS
                loggers[victim].kill()
                loggers[victim].join()
                loggers[victim] = start(victim)
                kills += 1
        for logger in loggers:
            logger.join(30)
        well = all(logger.exitcode == 0 for logger in loggers)
    finally:
        for logger in loggers:
            logger.kill()
            logger.join()
    level, highest = mark.level, max(noted)
    print(f"{kills} loggers were killed; the mark rose {waits} times by 20 or more while we waited")
    print(f"it fell {fell} times; it is {level}, the highest number noted is {highest}")
    # A logger that was killed before it noted its number begins again with the same one.
    right = highest <= level <= highest + LOGGERS
    pool.recover()
    pool.channels.remove("written")
    leaked = pool.audit()["leaked"]
    print(f"removed; {leaked} bytes leaked")
    return kills > 0 and waits > 0 and fell == 0 and right and well and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A channel of one's own, and kills.")
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="4MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
