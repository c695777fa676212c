"""`limpet top`: what the clients of a pool do now; shows the figures of stores/figures.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from limpet.cli.common import (
    console,
    json_option,
    plain,
    pool_argument,
    pool_of,
    print_line,
    size_text,
    table,
)
from limpet.shm.errors import StoreDropped
from limpet.shm.housekeeping import LOOK_INTERVAL_S, require_there
from limpet.stores.figures import Figures, rates

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpet.stores.pool import Pool

SAMPLE_S: Final = 0.01
SORTS: Final = {
    "operations": "operations_per_s", "changes": "changes_per_s", "hits": "hit_ratio",
    "read": "bytes_read_per_s", "written": "bytes_written_per_s", "busy": "busy",
    "time": "pinned_us", "memory": "memory", "pid": "pid",
}  # fmt: skip
LOCKS: Final = ("lock", "semaphore", "rwlock")
QUEUES: Final = ("queue", "jobs", "deque")


@click.command()
@pool_argument
@click.option("--interval", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True,
              metavar="SECONDS", help="How often to show new figures.")  # fmt: skip
@click.option("--once", is_flag=True, help="Show the figures of one interval, and end.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="operations", show_default=True,
              help="The order of processes.")  # fmt: skip
@click.option("--store", "name", metavar="NAME",
              help="Show this store: its users, its counts, and how far it has grown.")  # fmt: skip
@json_option
def top(url: str, interval: float, once: bool, sort: str, name: str | None, as_json: bool) -> None:
    """Show what the processes of a pool do, refreshed in place: operations and bytes a second, hit
    ratios, times, memory, repairs; stores; memory nodes; locks and queues. Ctrl-C ends it.

    Clients count anyway, so watching them costs them nothing; this process is a client, too, which
    may be killed as any other.

    "busy": the share of time in operations that pin, and "mean": the mean time of one, both by
    samples. With --json, a report a line.

    When the pool is destroyed, or the store of --store dropped, the command says so and ends with
    exit status 1.
    """
    with pool_of(url) as pool:
        if name is not None and name not in (there := [one["name"] for one in pool.stores()]):
            raise click.UsageError(
                f"{pool.url} has no store {name!r}; it has {', '.join(there) or 'none'}"
            )
        try:
            _run(pool, interval, once, sort, name, as_json)
        except KeyboardInterrupt:
            click.echo("ended", err=True)


def _run(
    pool: Pool, interval: float, once: bool, sort: str, name: str | None, as_json: bool
) -> None:
    found = reports(pool, interval, sort, name)
    if as_json:
        for report in found:
            print_line(report)
            if once:
                return
    out = console()
    if once or not out.is_terminal:
        for report in found:
            out.print(screen(report))
            if once:
                return
    from rich.live import Live

    with Live(console=out, auto_refresh=False) as live:
        for report in found:
            live.update(screen(report), refresh=True)


def reports(
    pool: Pool, interval_s: float, sort: str = "operations", name: str | None = None
) -> Iterator[dict[str, Any]]:
    """A report for each interval, until the pool is destroyed (PoolNotFound), or the store `name`
    dropped (StoreDropped)."""
    figures = Figures(pool)
    before = figures.look()
    check = time.monotonic()
    due = check + interval_s
    while True:
        while True:
            if (now := time.monotonic()) >= check:
                require_there(pool)
                check = now + LOOK_INTERVAL_S
            if now >= due:
                break
            figures.sample()
            time.sleep(min(due - now, SAMPLE_S))
        due += interval_s
        after = figures.look()
        report = {"url": pool.url, **rates(before, after)}
        column = SORTS[sort]
        report["clients"].sort(key=lambda row: row[column] or 0, reverse=column != "pid")
        if name is not None:
            if (store := figures.store(name, before, after)) is None:
                raise StoreDropped(f"{pool.url}: store {name!r} was dropped while it was watched")
            report["store"] = store
        before = after
        yield report


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _size(value: float | None) -> str:
    return "-" if value is None else size_text(value)


def _mean(us: float | None) -> str:
    return "-" if us is None else f"{us:.3g} us" if us < 1000 else f"{us / 1000:.3g} ms"


def screen(report: dict[str, Any]) -> RenderableType:
    """A report as tables."""
    from rich.console import Group

    total = report["total"]
    head = plain(
        f"{report['url']}: {total['clients']} processes, {_number(total['operations_per_s'])} "
        f"operations/s, hits {_share(total['hit_ratio'])}, read {_size(total['bytes_read_per_s'])}"
        f"/s, written {_size(total['bytes_written_per_s'])}/s, repairs {total['repairs']} "
        f"({total['repairs_per_s']:.1f}/s)"
    )
    parts: list[RenderableType] = [head, _clients(report["clients"])]
    if "store" in report:
        parts += _one_store(report["store"])
    elif report["stores"]:
        parts.append(_stores(report["stores"]))
    parts.append(_nodes(report["nodes"]))
    locks = [one for one in report["channels"] if one["kind"] in LOCKS]
    queues = [one for one in report["channels"] if one["kind"] in QUEUES]
    if locks:
        parts.append(_locks(locks))
    if queues:
        parts.append(_queues(queues))
    return Group(*parts)


def _clients(rows: list[dict[str, Any]]) -> RenderableType:
    columns = ("pid", "ops/s", "changes/s", "hits", "read/s", "written/s", "busy", "mean", "memory")
    made = table("processes", *columns, right=columns)
    for row in rows:
        if not row["ours"]:
            made.add_row(
                f"{row['pid']}{'' if row['state'] == 'live' else ' ' + row['state']}",
                _number(row["operations_per_s"]), _number(row["changes_per_s"]),
                _share(row["hit_ratio"]), _size(row["bytes_read_per_s"]),
                _size(row["bytes_written_per_s"]), _share(row["busy"]), _mean(row["pinned_us"]),
                _size(row["memory"]),
            )  # fmt: skip
    return made


def _stores(rows: list[dict[str, Any]]) -> RenderableType:
    columns = ("ops/s", "changes/s", "hits", "in all")
    made = table("stores", "name", "kind", *columns, right=columns)
    for row in rows:
        shared = f" (and {', '.join(row['shared_with'])})" if row["shared_with"] else ""
        made.add_row(
            plain(row["name"] + shared), row["kind"], _number(row["operations_per_s"]),
            _number(row["changes_per_s"]), _share(row["hit_ratio"]), _number(row["operations"]),
        )  # fmt: skip
    return made


def _one_store(row: dict[str, Any]) -> list[RenderableType]:
    made = table(f"store {plain(row['name'])}", "what", "value", right=("value",))
    made.add_row("kind", row["kind"])
    for name in ("operations_per_s", "changes_per_s", "operations"):
        made.add_row(name, _number(row[name]))
    made.add_row("hit_ratio", _share(row["hit_ratio"]))
    for name, value in {**(row["cache"] or {}), **(row["growth"] or {})}.items():
        if name not in ("name", "kind"):
            made.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    users = table("its users", "pid", "ops/s", "changes/s", "hits",
                  right=("pid", "ops/s", "changes/s", "hits"))  # fmt: skip
    for one in row["clients"]:
        users.add_row(
            str(one["pid"]), _number(one["operations_per_s"]), _number(one["changes_per_s"]),
            _share(one["hit_ratio"]),
        )  # fmt: skip
    return [made, users]


def _nodes(rows: list[dict[str, Any]]) -> RenderableType:
    columns = ("used", "of", "fill", "growth/s")
    made = table("memory nodes", "node", "state", *columns, right=columns)
    for row in rows:
        made.add_row(
            str(row["node"]), row["state"], _size(row["used"]), _size(row["size"]),
            _share(row["fill"]), _size(row["growth_per_s"]),
        )  # fmt: skip
    return made


def _pids(pids: list[int | None]) -> str:
    return ", ".join("gone" if pid is None else str(pid) for pid in pids)


def _locks(rows: list[dict[str, Any]]) -> RenderableType:
    made = table("locks", "name", "kind", "held by", "waiting")
    for row in rows:
        if row["kind"] == "lock":
            held = _pids([row["holder"]]) if row.get("held") else ""
            waiting = _pids(row.get("waiters", []))
        elif row["kind"] == "semaphore":
            held = _holders(row.get("holders", {}))
            waiting = f"{row.get('waiting', 0)} processes"
        else:
            writer = row.get("writer")
            held = f"{writer} writes" if writer else _holders(row.get("readers", {}))
            waiting = (
                f"{row.get('waiting_writers', 0)} to write, {row.get('waiting_readers', 0)} to read"
            )
        made.add_row(plain(row["name"]), row["kind"], held, waiting)
    return made


def _holders(holders: dict[str, int]) -> str:
    return ", ".join(pid if count == 1 else f"{pid} ({count})" for pid, count in holders.items())


def _queues(rows: list[dict[str, Any]]) -> RenderableType:
    columns = ("length", "in/s", "out/s")
    made = table("queues", "name", "kind", *columns, "consumers", right=columns)
    for row in rows:
        length = row.get("length", row.get("ready", 0) + row.get("delayed", 0))
        if row["kind"] == "jobs":
            length = f"{length} + {row.get('held', 0)} held"
        users = _pids(row.get("participants", [])) or _holders(row.get("holders") or {})
        waits = " (waiting)" if row.get("consumers_wait") else ""
        made.add_row(
            plain(row["name"]), row["kind"], str(length), _number(row.get("puts_per_s")),
            _number(row.get("gets_per_s")), users + waits,
        )  # fmt: skip
    return made
