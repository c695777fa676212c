"""The power_controller of the LOCO paper at several periods of its controller (figure 7).

In virtual time all loops run in this process, over the channel, on one clock: equal arguments give
equal figures. Live, the controller and some processes with the converters run loops of a fixed
period on the clock of the machine. A step of 10 us on the paper's cluster takes `scale` times as
long here, as one machine has not a core for each of 21 loops; the circuit is simulated as slowly.
An iteration that cannot begin in time begins late, and is counted.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from limpet.cli.common import table
from limpet.fault.inject.children import die_with_parent
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, ParameterError
from limpet.stores.channels.power_controller import (
    Circuit,
    Controller,
    Converter,
    PowerController,
    simulate,
)
from limpet.stores.pool import Pool

BAND: Final = 0.02
"""It has settled when it stays within this share of the reference."""
TAIL: Final = 0.25
"""The last share of a run, in which its ripple is measured."""
START_S: Final = 0.3
LATE_S: Final = 60.0


@dataclasses.dataclass(frozen=True)
class Setting:
    """`duration_us` of circuit time. `scale` 0: in virtual time."""

    period_us: float
    duration_us: float = 20_000.0
    scale: float = 0.0
    processes: int = 4
    circuit: Circuit = dataclasses.field(default_factory=Circuit)

    def __post_init__(self) -> None:
        if not (self.period_us > 0 and self.duration_us >= 10 * self.circuit.step_us):
            raise ParameterError("periods must be positive, and a run at least 10 steps long")
        if not (self.scale >= 0 and 1 <= self.processes <= self.circuit.converters):
            raise ParameterError("there are 1 to as many processes as converters")


@dataclasses.dataclass(frozen=True)
class Run:
    """The output over time: us of circuit time, and volts. `late`: share of late iterations."""

    setting: Setting
    times: tuple[float, ...]
    output: tuple[float, ...]
    late: float = 0.0

    @property
    def ripple_v(self) -> float:
        """From peak to peak, in the last quarter."""
        last = self.times[-1] * (1 - TAIL)
        tail = [volts for at, volts in zip(self.times, self.output, strict=True) if at >= last]
        return max(tail) - min(tail)

    @property
    def peak_v(self) -> float:
        return max(self.output)

    @property
    def settled_us(self) -> float | None:
        """When it came into the band for good; None: it is not there at the end."""
        reference = self.setting.circuit.reference_v
        since = None
        for at, volts in zip(self.times, self.output, strict=True):
            if abs(volts - reference) > BAND * reference:
                since = None
            elif since is None:
                since = at
        return since

    @property
    def stable(self) -> bool:
        """Whether it has settled before the last quarter."""
        settled = self.settled_us
        return settled is not None and settled <= self.times[-1] * (1 - TAIL)


def run(setting: Setting) -> Run:
    """One run. Live, raises LimpetError when a process fails."""
    url = f"shm://limpet-power-{os.getpid()}"
    with Pool.create(url, nodes=1, node_size=8 << 20) as pool:
        try:
            channel = pool.channels.open(
                PowerController, "power", converters=setting.circuit.converters
            )
            if setting.scale:
                return _live(channel, setting)
            points = list(
                simulate(channel, setting.circuit, setting.period_us, setting.duration_us)
            )
        finally:
            destroy(url)
    return _run(setting, points)


def _run(setting: Setting, points: Sequence[tuple[float, float]], late: float = 0.0) -> Run:
    times, output = (tuple(column) for column in zip(*points, strict=True))
    return Run(setting, times, output, late)


# ---- live ---------------------------------------------------------------------------------------


def _loop(step: Callable[[], object], period_s: float, start: float, count: int) -> int:
    """Call `step` so often at a fixed period, from `start` on; how often it was late."""
    late = 0
    for number in range(count):
        due = start + number * period_s
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        elif left < -period_s:
            late += 1
        step()
    return late


def _converters(
    channel: PowerController, setting: Setting, share: int, start: float, pipe: Connection
) -> None:
    die_with_parent()
    circuit = setting.circuit
    numbers = range(share, circuit.converters, setting.processes)
    converters = [Converter(channel, number, circuit) for number in numbers]

    def steps() -> None:
        for converter in converters:
            converter.step()

    count = int(setting.duration_us / circuit.step_us)
    late = _loop(steps, circuit.step_us * 1e-6 * setting.scale, start, count)
    pipe.send((late, count, []))


def _controller(channel: PowerController, setting: Setting, start: float, pipe: Connection) -> None:
    die_with_parent()
    controller = Controller(channel, setting.circuit, setting.period_us)
    points: list[tuple[float, float]] = []

    def step() -> None:
        total = controller.step()
        points.append(((time.monotonic() - start) * 1e6 / setting.scale, total))

    count = int(setting.duration_us / setting.period_us)
    late = _loop(step, setting.period_us * 1e-6 * setting.scale, start, count)
    pipe.send((late, count, points))


def _live(channel: PowerController, setting: Setting) -> Run:
    context = multiprocessing.get_context("fork")
    start = time.monotonic() + START_S
    works: list[tuple[Callable[..., None], tuple[object, ...]]] = [
        (_controller, (channel, setting)),
        *((_converters, (channel, setting, share)) for share in range(setting.processes)),
    ]
    started = []
    limit = START_S + setting.duration_us * 1e-6 * setting.scale + LATE_S
    try:
        for work, arguments in works:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(*arguments, start, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        answers = []
        for process, ours in started:
            if not ours.poll(max(0.0, start + limit - time.monotonic())):
                raise LimpetError(f"process {process.pid} of the circuit does not answer")
            try:
                answers.append(ours.recv())
            except EOFError as error:
                raise LimpetError(f"process {process.pid} of the circuit has ended") from error
    finally:
        for process, ours in started:
            process.kill()
            process.join()
            ours.close()
    late, count = (sum(answer[index] for answer in answers) for index in range(2))
    return _run(setting, answers[0][2], late / count)


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
