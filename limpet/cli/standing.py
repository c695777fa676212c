"""`limpet drill throttle`, `beside`, `looks`, `containers`: clients that stand still, or look."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from functools import partial
from typing import Any

import click

from limpet.cli.common import in_ms, json_option, table
from limpet.cli.drill_run import exit_status
from limpet.cli.faults import drill_url, fault_command, report, run_faults
from limpet.fault.drill import containers
from limpet.fault.drill import looks as of_looks
from limpet.fault.drill.beside import ROLES, Beside, roles_of
from limpet.fault.drill.engine import SHARE
from limpet.fault.drill.throttle import ThrottleParameters
from limpet.fault.drill.throttle import run as run_throttle
from limpet.fault.inject.containers import why_not
from limpet.fault.matrix.subjects import SUBJECTS


class Stops(click.ParamType):
    """`0.05:0.3`: the shortest stop and the longest one, in seconds."""

    name = "low:high"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        match = re.fullmatch(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", value)
        low, high = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
        if not 0 < low <= high:
            self.fail(f"{value!r} is not LOW:HIGH in seconds, such as 0.05:0.3", param, ctx)
        return low, high


@click.command()
@click.argument("subjects", nargs=-1, type=click.Choice(sorted(SUBJECTS)), metavar="[SUBJECT]...")
@click.option("--clients", type=click.IntRange(2, 64), default=4, show_default=True,
              help="Client processes.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10.0,
              show_default=True, help="How long they work on each subject.")  # fmt: skip
@click.option("--lease", "lease_ms", type=click.FloatRange(0.001), default=0.2,
              show_default=True, metavar="SECONDS", callback=in_ms,
              help="How long a client that others wait for may stand still.")  # fmt: skip
@click.option("--stops-s", type=Stops(), default="0.05:0.3", show_default=True,
              help="How long a client stands still.")  # fmt: skip
@click.option("--kill-rate", type=click.FloatRange(0), default=0.0, show_default=True,
              help="SIGKILLs a second.")  # fmt: skip
@click.option("--busy", is_flag=True,
              help="One client more is left alone, and works all the time.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Of every random choice.")
@json_option
def throttle(subjects: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Let clients stop now and then, and check that no client that makes progress is killed.

    A SUBJECT is a kind of store, or a channel; all of them if none is named. Each client stands
    still at random, also in the middle of operations, for times that may be longer than the lease.
    Another client may kill it for that, but not within a lease after it completed a turn. Exit
    status 0 only if that held, no client was blocked, and every subject is whole in the end.
    """
    seed = secrets.randbelow(1 << 32) if given["seed"] is None else given["seed"]
    given = {**given, "seed": seed, "url": drill_url()}
    shown = table(
        f"throttled clients, lease {given['lease_ms']} ms, seed {seed}",
        "subject", "turns", "stood still", "stops", "kills", "fenced", "verdict",
        right=("turns", "stood still", "stops", "kills", "fenced"),
    )  # fmt: skip
    reports = []
    with exit_status():
        for subject in subjects or SUBJECTS:
            one = run_throttle(ThrottleParameters(subject, **given))
            reports.append(one)
            shown.add_row(
                subject, f"{one.turns:,}", str(one.halts), str(one.stops), str(one.kills),
                str(one.fenced), "held" if one.ok else "failed",
            )  # fmt: skip
    report(
        as_json,
        [{**dataclasses.asdict(one), "ok": one.ok} for one in reports],
        shown,
        (f"{one.parameters.subject}: {failure}" for one in reports for failure in one.failures),
    )


@click.option("--realtime", is_flag=True,
              help="The busy writer has a core for itself (root, two cores or more).")  # fmt: skip
@fault_command("beside", sorted(SUBJECTS), ROLES)
def beside(
    subjects: tuple[str, ...], ways: tuple[str, ...], every: bool, realtime: bool, as_json: bool
) -> None:
    """Stop readers and waiters, let repairs meet a busy writer; no client may wait for a lease.

    A SUBJECT is a kind of store, or a channel; all of them if none is named. Clients stop, or die,
    at steps of their own, and the lease is an hour, so the command finds a client that waits for
    one of them. Exit status 0 only if none did.
    """
    if realtime and len(os.sched_getaffinity(0)) < 2:
        raise click.UsageError("--realtime needs two cores, or all else would stand still")
    share = 0 if every else SHARE
    run_faults(
        "beside clients that stand still",
        [
            partial(Beside(subject, drill_url(), share, realtime).run, role)
            for subject in subjects
            for role in roles_of(subject)
            if role in ways
        ],
        as_json,
    )


@fault_command("looks", sorted(of_looks.LIVING), of_looks.ROLES,
               every="Every step of each look: takes hours.")  # fmt: skip
def looks(subjects: tuple[str, ...], ways: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Look at all there is while others make, rename and drop one name, stop, and die.

    A SUBJECT is a kind of store, the cache, or a channel; all of them if none is named. Exit status
    0 only if no look failed, none made anything, and all memory came back.
    """
    run_faults(
        "looks beside clients that make, rename and drop",
        [
            partial(of_looks.Looks(subject, drill_url(), every).run, role)
            for subject in subjects
            for role in ways
        ],
        as_json,
    )


@fault_command("containers", sorted(containers.CONTAINED), containers.ROLES)
def containers_(
    subjects: tuple[str, ...], ways: tuple[str, ...], every: bool, as_json: bool
) -> None:
    """Kill, freeze and thaw containers at steps of a change, beside a client outside of them.

    A SUBJECT is a kind of store whose pool may have clients of many hosts, or a channel; all of
    them if none is named. Each container is a process in PID and mount namespaces of its own, so
    the command needs root. Exit status 0 only if nothing that a container kept was in the way of
    the client outside for longer than two leases, and no container that was thawed had been killed.
    """
    if why := why_not():
        raise click.UsageError(f"this process cannot make containers: {why}")
    share = 0 if every else containers.SHARE
    run_faults(
        "containers that are killed, or stand still",
        [
            partial(containers.Containers(subject, drill_url(), share).run, role)
            for subject in subjects
            for role in ways
        ],
        as_json,
    )
