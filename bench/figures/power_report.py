"""`limpet bench power`: its table, and the plot of the output over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from limpet.bench.figures.power import BAND, Run
from limpet.cli.common import table


def runs_table(found: Sequence[Run]) -> Table:
    """A row for each period."""
    numbers = ("output at the end", "ripple", "peak", "settled", "late")
    setting = found[0].setting
    circuit = setting.circuit
    how = f"live, {setting.scale:g} times slower" if setting.scale else "virtual time"
    shown = table(
        f"{circuit.converters} converters in series, {circuit.reference_v:g} V, "
        f"{setting.duration_us / 1000:g} ms; {how} (LOCO, figure 7)",
        "period", *numbers, "", right=("period", *numbers),
    )  # fmt: skip
    for one in found:
        settled = one.settled_us
        shown.add_row(
            f"{one.setting.period_us:g} us", f"{one.output[-1]:.1f} V", f"{one.ripple_v:.2f} V",
            f"{one.peak_v:.0f} V", "-" if settled is None else f"{settled / 1000:.2f} ms",
            f"{one.late:.1%}" if setting.scale else "-", "stable" if one.stable else "unstable",
        )  # fmt: skip
    shown.caption = (
        f"period: of the controller's loop; converters step every {circuit.step_us:g} us. ripple: "
        f"peak to peak in the last quarter. settled: within {BAND:.0%} from then on; stable: "
        "before the last quarter. late: iterations begun more than a period late. The paper: "
        "stable up to 40 us, more and more unstable beyond, with large transients at the start."
    )
    return shown


def as_json(found: Sequence[Run]) -> list[dict[str, Any]]:
    """All of it."""
    return [
        {
            **dataclasses.asdict(one),
            "ripple_v": one.ripple_v,
            "peak_v": one.peak_v,
            "settled_us": one.settled_us,
            "stable": one.stable,
        }
        for one in found
    ]


def save_plot(found: Sequence[Run], path: Path) -> None:
    """The output over time, a panel for each period. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.6 * len(found) + 0.6), layout="constrained")
    panels = figure.subplots(len(found), sharex=True, squeeze=False)[:, 0]
    for axes, one in zip(panels, found, strict=True):
        axes.plot([at / 1000 for at in one.times], one.output, lw=0.8,
                  color="tab:blue" if one.stable else "tab:red")  # fmt: skip
        axes.axhline(one.setting.circuit.reference_v, color="tab:gray", lw=0.6)
        axes.set(title=f"controller every {one.setting.period_us:g} us", ylabel="V")
    panels[-1].set_xlabel("ms")
    figure.savefig(path, format="png", dpi=100)
