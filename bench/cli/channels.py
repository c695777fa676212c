"""`limpet bench channels` and `power`: channels and a power controller over them."""

from __future__ import annotations

import pathlib

import click
from rich.text import Text

from limpet.bench.cli.options import (
    COUNTS,
    PATH,
    List,
    advancing,
    check_files,
    interruptible,
    progress_bar,
)
from limpet.bench.figures import power
from limpet.bench.peers import channels
from limpet.cli.common import console, json_option, print_json
from limpet.shm.errors import ParameterError


@click.command("channels")
@click.option("--cases", type=List(str), default=",".join(channels.CASES), show_default=True,
              help="What to time.")  # fmt: skip
@click.option("--processes", type=COUNTS, default="2,8", show_default=True,
              help="Numbers of processes to run with.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.01), default=0.5, show_default=True,
              help="About how long each loop is.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="How often everything is measured; medians are reported.")  # fmt: skip
@json_option
def channels_command(
    cases: tuple[str, ...], processes: tuple[int, ...], seconds: float, rounds: int, as_json: bool
) -> None:
    """Measure locks, barriers, queues and rings against multiprocessing's, and Open MPI's locks.

    Open MPI is named as missing where it is not installed. Exit status 0 only if every process came
    back.
    """
    found: list[channels.Result] = []
    try:
        with interruptible(), advancing(len(cases) * len(processes)) as advance:
            for text, results in channels.run(cases, processes, seconds, rounds):
                advance(text)
                found += results
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(channels.as_json(found))
    else:
        console().print(channels.results_table(found))
        for name, reason in channels.missing(found).items():
            console().print(Text(f"missing: {name}: {reason}", style="yellow"), soft_wrap=True)


@click.command("power")
@click.option("--periods", type=List(float), default="10,20,40,50,60,80", show_default=True,
              help="Periods of the controller's loop, in us.")  # fmt: skip
@click.option("--ms", type=click.FloatRange(0.1, 10_000), default=20.0, show_default=True,
              help="How long each run is, in the time of the circuit.")  # fmt: skip
@click.option("--live", is_flag=True, help="Run processes, on the clock of the machine.")
@click.option("--scale", type=click.FloatRange(1, 1e6), default=500.0, show_default=True,
              help="How many times slower the loops are when live.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 20), default=4, show_default=True,
              help="Processes for the 20 converters when live.")  # fmt: skip
@json_option
@click.option("--plot", type=PATH, help="Draw the output over time into this PNG file.")
def power_command(
    periods: tuple[float, ...],
    ms: float,
    live: bool,
    scale: float,
    processes: int,
    as_json: bool,
    plot: pathlib.Path | None,
) -> None:
    """Regulate 20 converters over a channel, as in figure 7 of the LOCO paper.

    In virtual time, equal arguments give equal figures. Live, each run takes --ms times --scale.
    """
    check_files("--plot", plot)
    if not periods or min(periods) <= 0:
        raise click.UsageError("--periods: a period must be positive")
    found = []
    with interruptible(), progress_bar() as progress:
        task = progress.add_task("", total=len(periods))
        for period in periods:
            progress.update(task, description=f"{period:g} us", refresh=True)
            setting = power.Setting(period, 1000 * ms, scale if live else 0.0, processes)
            found.append(power.run(setting))
            progress.update(task, advance=1, refresh=True)
    if plot is not None:
        power.save_plot(found, plot)
    if as_json:
        print_json(power.as_json(found))
    else:
        console().print(power.runs_table(found))
