"""The throughput of a run over time, in buckets, with its kills, stops and lost nodes; as a PNG."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

SECOND_NS: Final = 1_000_000_000
WIDTH_IN: Final = 12.0
DPI: Final = 100


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Times of events in a run of `length_ns`, in ns from its start.

    `returns`: operations that came back; `kills`; `stops`: start and end of each;
    `losses`: of memory nodes, with their numbers.
    """

    length_ns: int
    returns: Times
    kills: Times
    stops: list[tuple[int, int]]
    losses: list[tuple[int, int]]

    def throughput(self, bucket_ns: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The start of each bucket, in s, and the operations a second that came back in it.

        A last bucket that is not whole is left out.
        """
        count = self.length_ns // bucket_ns
        edges = np.arange(count + 1, dtype=np.int64) * bucket_ns
        found, _ = np.histogram(self.returns[self.returns < edges[-1]], edges)
        return edges[:-1] / SECOND_NS, found * (SECOND_NS / bucket_ns)


def save(timeline: Timeline, bucket_ns: int, title: str, path: Path) -> None:
    """Draw it into the PNG file `path`. Needs matplotlib."""
    from matplotlib.figure import Figure

    starts, rates = timeline.throughput(bucket_ns)
    figure = Figure(figsize=(WIDTH_IN, 4), layout="constrained")
    axes = figure.subplots()
    for number, (begin, end) in enumerate(timeline.stops):
        label = f"stopped ({len(timeline.stops)})" if number == 0 else None
        axes.axvspan(begin / SECOND_NS, end / SECOND_NS, color="tab:orange", alpha=0.2, lw=0,
                     label=label)  # fmt: skip
    axes.plot(starts, rates / 1000, drawstyle="steps-post", lw=0.7, color="tab:blue")
    if len(timeline.kills):
        axes.plot(
            timeline.kills / SECOND_NS, np.zeros(len(timeline.kills)), "|", color="tab:red",
            ms=7, mew=0.5, label=f"kills ({len(timeline.kills)})", clip_on=False,
        )  # fmt: skip
    for at, node in timeline.losses:
        axes.axvline(at / SECOND_NS, color="black", ls="--", lw=1, label=f"node {node} lost")
    axes.set(
        xlabel="time (s)", title=title, xlim=(0, timeline.length_ns / SECOND_NS),
        ylabel=f"1000 operations/s, in buckets of {bucket_ns / 1e6:g} ms",
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")
    figure.savefig(path, format="png", dpi=DPI)
