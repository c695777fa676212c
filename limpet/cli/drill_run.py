"""`limpet drill STORE`: runs drill/store_drill.py and shows it; and the types of its options."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from limpet.cli import drill_view
from limpet.cli.common import (
    Commands,
    PoolUrl,
    console,
    in_ms,
    json_option,
    parameter_option,
    print_json,
)
from limpet.cli.drill_view import print_summary, to_dict
from limpet.cli.live_view import Lines, Screen, Silent, describe
from limpet.fault.check.recorder import Operation
from limpet.fault.check.self_check import TRAILER_SIZE
from limpet.fault.drill.demo import DemoObserver
from limpet.fault.drill.drill_base import RunParameters
from limpet.fault.drill.store_drill import MIX, DrillParameters
from limpet.fault.drill.store_drill import run as run_drill
from limpet.fault.drill.timeline import save
from limpet.fault.inject.interrupt import Interrupted
from limpet.shm.parameters import LOCAL_POLICIES, parse_size
from limpet.stores.registry import KINDS

MIX_TEXT: Final = ",".join(f"{op.name.lower()}={share:g}" for op, share in MIX.items())


class StoreOrCommand(Commands):
    """A group for which the kind of a store stands for `run` with that store."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in KINDS:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


class FailNode(click.ParamType):
    """`AT` or `AT:NODE`: seconds into the run, and a node's number."""

    name = "at[:node]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, int | None]:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+))?", value)
        if match is None:
            self.fail(f"{value!r} is not AT or AT:NODE, such as 5 or 2.5:1", param, ctx)
        return float(match[1]), None if match[2] is None else int(match[2])


class MixShares(click.ParamType):
    """`get=50,put=50`: operations with their shares."""

    name = "op=share,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[Operation, float]:
        shares: dict[Operation, float] = {}
        for part in value.split(","):
            match = re.fullmatch(r"\s*([a-z]+)=(\d+(?:\.\d+)?)\s*", part)
            if match is None or match[1].upper() not in Operation.__members__:
                self.fail(f"{part!r} is not OPERATION=SHARE, such as in {MIX_TEXT}", param, ctx)
            shares[Operation[match[1].upper()]] = float(match[2])
        if sum(shares.values()) <= 0:
            self.fail("no operation has a share", param, ctx)
        return shares


class Sizes(click.ParamType):
    """`N` or `LOW:HIGH`, in bytes."""

    name = "low[:high]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", value)
        if match is None:
            self.fail(f"{value!r} is not a size or LOW:HIGH", param, ctx)
        low, high = int(match[1]), int(match[2] or match[1])
        if not TRAILER_SIZE <= low <= high:
            self.fail(f"values have {TRAILER_SIZE} bytes or more, LOW first", param, ctx)
        return low, high


class Bucket(click.ParamType):
    """`10ms`: a time from 1 ms to 1 s; in ns."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", value)
        bucket = 0 if match is None else round(float(match[1]) * {"ms": 1e6, "s": 1e9}[match[2]])
        if not 1_000_000 <= bucket <= 1_000_000_000:
            self.fail(f"{value!r} is not a time from 1ms to 1s, such as 10ms", param, ctx)
        return bucket


def fault_options(
    kill_rate: float,
    clients: int = 4,
    seconds: float = 10.0,
    stop_rate: float = 2.0,
    history: bool = True,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a drill in which clients are killed and stopped at random, with these
    defaults. `history`: it writes one."""
    of_history = (
        click.option("--history", type=click.Path(dir_okay=False, writable=True),
                     help="Write the history there, as JSON Lines."),
    )  # fmt: skip
    options = (
        click.option("--clients", type=click.IntRange(1, 256), default=clients, show_default=True,
                     help="Client processes."),
        click.option("--seconds", type=click.FloatRange(0, min_open=True), default=seconds,
                     show_default=True, help="How long the clients work."),
        click.option("--kill-rate", type=click.FloatRange(0), default=kill_rate, show_default=True,
                     help="SIGKILLs a second."),
        click.option("--stop-rate", type=click.FloatRange(0), default=stop_rate, show_default=True,
                     help="SIGSTOPs a second; SIGCONT follows, for some after the lease."),
        click.option("--seed", type=click.IntRange(0),
                     help="Repeats a run's choices; printed if drawn."),
        click.option("--fence", type=click.Choice(LOCAL_POLICIES), default="kill",
                     show_default=True,
                     help="The pool's policy towards clients that stand still."),
        click.option("--lease", "lease_ms", type=click.FloatRange(0.001), default=0.25,
                     show_default=True, metavar="SECONDS", callback=in_ms,
                     help="How long a client that others wait for may stand still."),
        click.option("--watch/--no-watch", default=True, show_default=True,
                     help="One more process recovers dead clients, and is a victim too."),
        click.option("--blocked-s", type=click.FloatRange(0, min_open=True), default=10.0,
                     show_default=True,
                     help="A client without progress for so long is blocked."),
        *(of_history if history else ()),
        click.option("--url", type=PoolUrl(),
                     help="Where to make the pool.  [default: shm://drill-PID]"),
        parameter_option,
        json_option,
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def run_parameters(given: dict[str, Any], name: str = "drill") -> dict[str, Any]:
    """The values of options such as `fault_options`; draws a seed, and a URL with the `name`, if
    none is given."""
    seed = secrets.randbelow(1 << 32) if given["seed"] is None else given["seed"]
    return {**given, "seed": seed, "url": given["url"] or f"shm://{name}-{os.getpid()}"}


@contextlib.contextmanager
def shown(
    parameters: RunParameters, as_json: bool, kinds: tuple[str, str] = drill_view.KINDS
) -> Iterator[DemoObserver]:
    """An observer that shows the drill. An interrupt in the body becomes an exit status."""
    out = Console(stderr=True) if as_json else console()
    with exit_status(), contextlib.ExitStack() as stack:
        view: DemoObserver = Silent() if as_json else Lines(out, parameters, kinds)
        if out.is_terminal:
            view = stack.enter_context(Screen(out, parameters, kinds))
        yield view


@contextlib.contextmanager
def exit_status() -> Iterator[None]:
    """An interrupt in the body, which ends a drill, becomes an exit status."""
    try:
        yield
    except Interrupted as error:
        click.echo(f"{error}: the clients have ended and the pool is removed", err=True)
        raise SystemExit(128 + error.signal) from error


@click.command()
@click.argument("store", type=click.Choice(sorted(KINDS)), metavar="STORE")
@fault_options(kill_rate=20.0)
@click.option("--fail-node", "losses", type=FailNode(), multiple=True,
              help="Lose a memory node so many seconds into the run; may be repeated.  "
              "[NODE: drawn]")  # fmt: skip
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=2000, show_default=True,
              help="Keys that the clients work on.")  # fmt: skip
@click.option("--theta", type=click.FloatRange(0, 10), default=0.99, show_default=True,
              help="Skew of the keys (Zipf); 0: none.")  # fmt: skip
@click.option("--mix", type=MixShares(), default=MIX_TEXT, show_default=True,
              help="Shares of the operations.")  # fmt: skip
@click.option("--value-size", "value_sizes", type=Sizes(), default="40:400", show_default=True,
              help="Bytes of a value.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 255), default=3, show_default=True,
              help="Memory nodes.")  # fmt: skip
@click.option("--node-size", help="Of each node, such as 2MiB; little makes memory scarce.  "
              "[default: ample]")  # fmt: skip
@click.option("--timeline", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Draw throughput and faults over time into this PNG.")  # fmt: skip
@click.option("--bucket", type=Bucket(), default="50ms", show_default=True,
              help="Of the timeline, 1ms to 1s.")  # fmt: skip
def run(
    losses: tuple[tuple[float, int | None], ...],
    node_size: str | None,
    history: str | None,
    timeline: Path | None,
    bucket: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Kill and stop real clients of a STORE at random, then judge their results.

    `limpet drill STORE` is short for this. Clients insert, update, put, get and delete. The command
    kills and replaces, or stops, a random client again and again, and memory nodes are lost.
    Afterwards the history must be linearizable, every value whole, every invariant intact, no byte
    leaked and no client blocked; only then is the exit status 0. The pool is gone in the end, also
    after Ctrl-C.
    """
    check_outputs(history, timeline)
    given = run_parameters(given)
    parameters = DrillParameters(
        losses=_drawn(losses, given["nodes"], given["seed"]),
        node_size=0 if node_size is None else parse_size(node_size),
        **given,
    )
    with shown(parameters, as_json) as view:
        report = run_drill(parameters, view, history)
    if timeline is not None:
        save(report.timeline, bucket, describe(parameters), timeline)
    if as_json:
        print_json(to_dict(report))
    else:
        print_summary(console(), report)
    if not report.ok:
        raise SystemExit(1)


def check_outputs(history: str | None, timeline: Path | None = None) -> None:
    """Refuse at the start a report that could not be written at the end."""
    for option, path in (("--history", history), ("--timeline", timeline)):
        folder = None if path is None else Path(path).absolute().parent
        if folder is not None and not folder.is_dir():
            raise click.UsageError(f"{option}: there is no directory {folder}")
    if timeline is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--timeline needs matplotlib: pip install 'limpet[peers]'")


def _drawn(
    losses: tuple[tuple[float, int | None], ...], nodes: int, seed: int
) -> tuple[tuple[float, int], ...]:
    """The losses, with a node drawn for each that names none; never the same one twice."""
    named = [node for _, node in losses if node is not None]
    free = [node for node in range(nodes) if node not in named]
    if len(set(named)) < len(named) or len(losses) > nodes:
        raise click.UsageError("--fail-node: a node can be lost only once")
    random.Random(seed).shuffle(free)
    return tuple((at, free.pop() if node is None else node) for at, node in sorted(losses, key=_at))


def _at(loss: tuple[float, int | None]) -> float:
    return loss[0]
