"""`limpet rack`: virtual machines that share a device, one of which is lost."""

from __future__ import annotations

import datetime
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

import limpet
from limpet.cli.common import in_ms

try:
    from limpet.fault.rack import image, scenarios
    from limpet.fault.rack.rack import RackParameters
    from limpet.fault.rack.scenarios import ALONE, SCENARIOS
    from limpet.fault.rack.works import KINDS, work_of
except ModuleNotFoundError as error:
    if error.name != "limpet.fault.rack":
        raise
    raise click.ClickException(
        "an installed limpet has no virtual machines; run `make rack` in a checkout of its sources"
    ) from error


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option("--scenario", "chosen", type=click.Choice([*SCENARIOS, *ALONE]), multiple=True,
              help="The scenario; may be repeated.  [default: all]")  # fmt: skip
@click.option("--build", type=click.Path(path_type=Path), default=Path("build/rack"),
              show_default=True, help="The folder with the kernel's package.")  # fmt: skip
@click.option("--lease", "lease_ms", type=click.FloatRange(0.5),
              default=RackParameters.lease_ms / 1000, show_default=True, metavar="SECONDS",
              callback=in_ms, help="A lease; it is longer where machines are late.")  # fmt: skip
@click.option("--work-s", type=click.FloatRange(1), default=RackParameters.work_s,
              show_default=True, help="How long clients work before a loss.")  # fmt: skip
@click.option("--freezes", type=click.IntRange(1), default=RackParameters.freezes,
              show_default=True, help="How often a machine stands still.")  # fmt: skip
@click.option("--processors", type=click.IntRange(1, 8), default=RackParameters.processors,
              show_default=True, help="Processors of each machine.")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path),
              help="Write the log of a whole run here, too, and that of some scenarios or kinds to "
              "PATH.part.")  # fmt: skip
def rack(
    kinds: tuple[str, ...],
    chosen: tuple[str, ...],
    build: Path,
    report: Path | None,
    **given: Any,
) -> None:
    """Lose a virtual machine that works on a pool on shared device DAX (docs/hosts.md).

    KINDs are kinds of stores, channels and transactions; those of the docs if none is named. The
    command emulates two machines, so it takes minutes. It names a missing program, with the way to
    get it. Exit status 0 only if every check held.
    """
    for kind in kinds:
        work_of(kind, 1)
    needs = image.look(build)
    parameters = RackParameters(kinds=kinds or KINDS, **given)
    lines: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def tell(line: str) -> None:
        lines.append(line)
        click.echo(line)

    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    tell(f"limpet {limpet.__version__}, {when}, kernel {needs.kernel.name}, {parameters}")
    began = time.monotonic()
    try:
        outcomes = scenarios.run(needs, parameters, chosen or (*ALONE, *SCENARIOS), tell)
        failed = sum(not outcome.ok for outcome in outcomes)
        tell(f"{len(outcomes)} runs, {failed} with a check that failed, "
             f"{time.monotonic() - began:.0f} s")  # fmt: skip
    finally:
        if report is not None:
            if kinds or chosen:
                report = report.with_name(report.name + ".part")
            report.write_text("\n".join(lines) + "\n")
    if failed:
        raise SystemExit(1)
