"""LOCO's figures 4 and 7, and its fence, as entries: those of its channels."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from limpet.bench.figures import power
from limpet.bench.figures.entries import Entry, Impossible, Point, Run, Scale
from limpet.bench.peers import channels, mpi

PROCESSES: Final = 2


def _against_mpi(case: str, paper: tuple[float, float], scale: Scale) -> Run:
    if missing := mpi.missing():
        raise Impossible(missing)
    seconds = 0.05 if scale.quick else 0.5
    (found,) = channels.run((case,), (PROCESSES,), seconds, 1 if scale.quick else 5)
    points = [
        Point(case, one.contender, 1 / one.ratio, paper)
        for one in found[1]
        if one.contender == mpi.MPI and one.ratio
    ]
    points.append(Point(case, channels.LIMPET, 1.0, 1.0))
    return Run({"processes": PROCESSES, "seconds": seconds}, points)


def _loop(scale: Scale) -> Run:
    periods = (20, 40, 80) if scale.quick else (10, 20, 40, 50, 60, 80)
    points = []
    for period in periods:
        found = power.run(power.Setting(period))
        points.append(Point("stable", f"{period} us", float(found.stable), float(period <= 40)))
        points.append(Point("ripple, V", f"{period} us", found.ripple_v))
    return Run({"converters": 20, "ms": 20}, points)


def _entries() -> Iterator[Entry]:
    text = "section 7.1, a picture without numbers: "
    yield Entry(
        "4 lock", "throughput of one contended lock, over ours", "over limpet's",
        f"{text}Open MPI's lock is consistently faster.",
        functools.partial(_against_mpi, "number", (1.05, 100.0)), clock="machine",
    )  # fmt: skip
    yield Entry(
        "4 transactions", "throughput of transfers under two locks, over ours", "over limpet's",
        f"{text}LOCO is faster than Open MPI.",
        functools.partial(_against_mpi, "transfer", (0.0, 0.95)), clock="machine",
        reason="processes of one host, which Open MPI serves by shared memory.",
    )  # fmt: skip
    yield Entry(
        "7", "output of 20 converters by the period of their controller's loop", "1: stable",
        "appendix: stable up to 40 us, increasingly unstable above; the curves have no numbers.",
        _loop,
        reason="the paper prints no parameters of the circuit; ours settle up to 40 us.",
    )  # fmt: skip
    yield Entry(
        "fence", "what a fence between write and release costs an update", "",
        "section 7.2: 15 %.", None,
        reason="verbs on one memory node take effect in order, so a fence of a pair costs nothing "
        "(docs/channels.md).",
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
