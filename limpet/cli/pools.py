"""Commands for whole pools: `limpet create`, `ls`, `inspect`, `hosts`, `watch`, `destroy`, and
`add-node`, `fail-node` and `replace-node`."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import time
from typing import Any

import click

import limpet
from limpet.cli.common import (
    PoolUrl,
    any_owner,
    console,
    count_text,
    json_option,
    nodes_text,
    plain,
    pool_argument,
    pool_of,
    print_json,
    print_line,
    size_text,
    table,
    time_text,
    url_argument,
)
from limpet.shm.backends import segments
from limpet.shm.backends.inventory import list_pools
from limpet.shm.ephemeral import sweep
from limpet.shm.errors import PoolIncomplete, PoolNotFound
from limpet.shm.parameters import FENCE_POLICIES, PoolParameters
from limpet.shm.release import PROTOCOL, RELEASE
from limpet.stores.figures import SCHEMA

WAIT_S = 0.2
"""How often `watch --wait` looks for a pool that is not there."""
TERMS = ("multi_host", "lease_us", "fence", "coherent", "coherent_bytes", "durable")
"""The parameters of a pool on which its hosts go."""


@click.command()
@url_argument
@click.option("--nodes", type=int, help="Memory nodes.  [default: 1, on dax one a device]")
@click.option("--node-size", help="Size of a node.  [default: 64MiB, on dax all of a device]")
@click.option("--block-size", help="Size of a coarse block.  [default: 1/256 of a node]")
@click.option("--clients", type=int, default=PoolParameters.clients, show_default=True,
              help="Slots for clients, of which one is kept for recovery.")  # fmt: skip
@click.option("--lease", type=float, default=PoolParameters().lease, metavar="SECONDS",
              show_default=True,
              help="How long a client that others wait for may stand still.")  # fmt: skip
@click.option("--fence", type=click.Choice(FENCE_POLICIES), default=PoolParameters.fence,
              show_default=True, help="Kill such a client, or wait for it.")  # fmt: skip
@click.option("--multi-host/--one-host", default=None,
              help="Clients of other hosts, containers may join.  [default: on dax]")  # fmt: skip
@click.option("--away", type=click.IntRange(1), metavar="COUNT",
              help="The last COUNT nodes are on other hosts: `limpet serve --control` makes them "
              "there (docs/network.md).")  # fmt: skip
@click.option("--numa-node", "numa_nodes", multiple=True, metavar="NUMBER|NAME",
              help="Bind to this NUMA node; repeated: each memory node to its own. A name is "
              "memory-only, memory_tierN, daxN.M or nodeN.")  # fmt: skip
@click.option("--durable", is_flag=True,
              help="What has returned survives a power cut (docs/durable.md).")  # fmt: skip
@click.option("--coherent/--not-coherent", default=None,
              help="Whether the hosts' caches are kept coherent.  [default: they are]")  # fmt: skip
@click.option("--coherent-bytes", type=click.IntRange(0),
              help="With --not-coherent: the coherent bytes at the start of a node.")  # fmt: skip
@click.option("--huge-pages", is_flag=True, help="Back the memory with huge pages.")
@click.option("--prefault", is_flag=True, help="Allocate all pages now.")
@click.option("--mode", metavar="OCTAL", help="Permissions of the segments.  [default: 600]")
@click.option("--group", help="The group of the segments, by name or number; it may use the pool "
              "if --mode says so (660).")  # fmt: skip
@click.option("--overwrite", is_flag=True,
              help="On dax: also where a device holds other data, which is lost.")  # fmt: skip
@click.option("--store", "stores", multiple=True, metavar="KIND:NAME[:CAPACITY]",
              help="Make this store, too; may be repeated.")  # fmt: skip
@json_option
def create(
    url: str,
    nodes: int | None,
    node_size: str | None,
    block_size: str | None,
    clients: int,
    lease: float,
    fence: str,
    multi_host: bool | None,
    away: int | None,
    numa_nodes: tuple[str, ...],
    durable: bool,
    coherent: bool | None,
    coherent_bytes: int | None,
    huge_pages: bool,
    prefault: bool,
    mode: str | None,
    group: str | None,
    overwrite: bool,
    stores: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a pool, and the stores that --store names; no pool, if a store cannot be made.

    Sizes are bytes, or text such as 64MiB.
    """
    wanted = [_store(text) for text in stores]
    optional = {
        "block_size": block_size, "multi_host": multi_host, "coherent": coherent,
        "coherent_bytes": coherent_bytes, "group": _group(group), "mode": _mode(mode),
    }  # fmt: skip
    given: dict[str, Any] = {name: one for name, one in optional.items() if one is not None}
    if numa_nodes:
        bound = tuple(int(one) if one.isdecimal() else one for one in numa_nodes)
        given["numa_node"] = bound if len(bound) > 1 else bound[0]
    if away:
        if stores:
            raise click.UsageError(
                "--store: a pool with nodes on other hosts is complete once they are"
            )
        made = limpet.create_apart(
            url, away, nodes=nodes, node_size=node_size, clients=clients, lease=lease, fence=fence,
            durable=durable, huge_pages=huge_pages, prefault=prefault, overwrite=overwrite, **given,
        )  # fmt: skip
        _print_apart(segments.canonical(url), made, as_json)
        return
    with limpet.create(
        url,
        nodes=nodes,
        node_size=node_size,
        clients=clients,
        lease=lease,
        fence=fence,
        durable=durable,
        huge_pages=huge_pages,
        prefault=prefault,
        overwrite=overwrite,
        **given,
    ) as pool:
        try:
            for kind, name, parameters in wanted:
                pool.store(kind, name=name, **parameters)
        except BaseException:
            limpet.destroy(url)
            raise
        report = {"url": pool.url, "parameters": dataclasses.asdict(pool.parameters)}
    if as_json:
        print_json(report)
    else:
        count, size = pool.parameters.nodes, pool.parameters.nodes * pool.parameters.node_size
        click.echo(f"created {pool.url}: {count_text(count, 'node')}, {size_text(size)} in all")


def _print_apart(url: str, made: PoolParameters, as_json: bool) -> None:
    if as_json:
        print_json({"url": url, "parameters": dataclasses.asdict(made)})
        return
    there = ", ".join(map(str, range(made.here, made.nodes)))
    click.echo(
        f"created {url}: {count_text(made.nodes, 'node')} of {size_text(made.node_size)}; "
        f"to be made by `limpet serve --control` on other hosts: {there}"
    )


def _mode(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 8)
    except ValueError:
        raise click.UsageError(f"--mode takes permissions such as 660, not {text!r}") from None


def _group(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _store(text: str) -> tuple[str, str, dict[str, int]]:
    kind, _, rest = text.partition(":")
    name, _, capacity = rest.partition(":")
    if not kind or not name or not (capacity.isdecimal() or not capacity):
        raise click.UsageError(f"--store takes KIND:NAME[:CAPACITY], not {text!r}")
    return kind, name, {"capacity": int(capacity)} if capacity else {}


@click.command()
@click.argument("url", type=PoolUrl(), metavar="[POOL]", required=False)
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List the pools in shared memory, or the one at POOL, sound or not.

    Ephemeral pools whose last client has been killed are removed first.
    """
    sweep(url or "")
    pools = list_pools(url or "")
    if url and not pools:
        raise limpet.PoolNotFound(
            f"{url}: there is no such pool; `limpet ls` lists those there are"
        )
    if as_json:
        print_json(pools)
        return
    made = table("", "pool", "nodes", "size", "owner", "state", right=("nodes", "size"))
    for pool in pools:
        owner = "" if pool["uid"] is None else str(pool["uid"])
        made.add_row(
            plain(pool["url"]), str(pool["nodes"]), size_text(pool["bytes"]), owner, pool["status"]
        )
    if pools:
        console().print(made)
    else:
        click.echo("no pools")


@click.command()
@pool_argument
@json_option
def inspect(url: str, as_json: bool) -> None:
    """Show a pool: parameters, nodes, stores, channels, clients, hosts, every byte, last events.

    The command is a client, too: the one that is "ours". It names a part that cannot be read,
    because a node is lost or damaged; then the exit status is 1.
    """
    with pool_of(url) as pool:
        report: dict[str, Any] = {
            "schema": SCHEMA,
            "url": pool.url,
            "uuid": pool.uuid.hex(),
            "protocol": PROTOCOL,
            "parameters": dataclasses.asdict(pool.parameters),
        }
        errors: dict[str, str] = {}
        for title, look in (
            ("nodes", pool.nodes),
            ("stores", pool.stores),
            ("growth", pool.growth),
            ("channels", lambda: [] if pool.parameters.durable else pool.channels.list(state=True)),
            ("clients", pool.clients),
            ("hosts", pool.hosts),
            ("audit", pool.audit),
            ("events", pool.events),
        ):
            try:
                report[title] = look()
            except limpet.LimpetError as error:
                report[title] = None
                errors[title] = f"{type(error).__name__}: {error}"
    for one in report["growth"] or []:
        if "lost" in one:
            errors[f"store {one['name']}"] = f"NodeFailed: {one['lost']}"
    report["errors"] = errors
    if as_json:
        print_json(report)
    else:
        _print_pool(report)
    if errors:
        raise SystemExit(1)


def _print_pool(report: dict[str, Any]) -> None:
    out = console()
    out.print(plain(report["url"]).append(f"  {report['uuid']}  protocol {report['protocol']}"))
    for title in report:
        if title in report["errors"]:
            click.echo(f"{title}: {report['errors'][title]}", err=True)
        elif title == "parameters":
            made, now = report[title]["nodes"], len(report["nodes"] or ())
            nodes = f"{made}, and {now - made} added" if now > made else made
            out.print(_pairs(title, {**report[title], "nodes": nodes}))
        elif title in ("schema", "url", "uuid", "protocol", "errors"):
            continue
        elif title == "growth":
            _print_growth(report[title])
        elif title == "hosts":
            out.print(_host_rows(report[title]))
        elif title == "audit":
            out.print(_pairs(title, report[title]))
        else:
            out.print(_rows(title, report[title]))
    for title, error in report["errors"].items():
        if title not in report:
            click.echo(f"{title}: {error}", err=True)


def _print_growth(stores: list[dict[str, Any]]) -> None:
    """A row for each hash table, and one for each split under way."""
    lost = dict.fromkeys(("depth", "slots", "filled", "splits under way"), "")
    rows = [
        {"name": one["name"], "kind": one["kind"], "subtables": "lost", **lost}
        if "lost" in one
        else {
            "name": one["name"],
            "kind": one["kind"],
            "subtables": one["subtables"],
            "depth": "-".join(map(str, sorted(set(one["depth"])))),
            "slots": one["slots"],
            "filled": f"{one['pairs'] / (one['slots'] or 1):.0%}",
            "splits under way": len(one["splits"]),
        }
        for one in stores
    ]
    splits = [
        {
            "name": one["name"],
            "directory": split["directory"],
            "entry": split["entry"],
            "halves": f"{split['halves']} of 2",
            "frozen": f"{split['frozen']} of {split['slots']}",
            "by": ", ".join(map(str, split["pids"])) or "?",
            "since": "?" if split["since_ns"] is None else _clock(split["since_ns"]),
        }
        for one in stores
        for split in one.get("splits", ())
    ]
    if rows:
        console().print(_rows("growth", rows))
    if splits:
        console().print(_rows("splits under way", splits))


def _pairs(title: str, values: dict[str, Any]) -> Any:
    made = table(title, "what", "value", right=("value",))
    for name, value in values.items():
        is_size = title == "audit" or name.endswith("_size")
        made.add_row(name, f"{size_text(value)} ({value})" if is_size else str(value))
    return made


def _rows(title: str, rows: list[dict[str, Any]]) -> Any:
    if not rows:
        return f"[bold]{title}[/]: none"
    made = table(title, *rows[0])
    for row in rows:
        made.add_row(*(plain(_cell(name, value)) for name, value in row.items()))
    return made


def _cell(name: str, value: Any) -> str:
    if name == "size":
        return size_text(value)
    if name == "time_ns":
        return _clock(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return str(value)


def _clock(time_ns: int) -> str:
    return datetime.datetime.fromtimestamp(time_ns / 1e9).isoformat(
        sep=" ", timespec="milliseconds"
    )


@click.command()
@pool_argument
@click.option("--interval", type=click.FloatRange(0, min_open=True), default=0.005,
              show_default=True, metavar="SECONDS", help="How often to look.")  # fmt: skip
@click.option("--fence-command", metavar="COMMAND", default="",
              help="Switches off a host whose lease is over; called with name, machine and boot of "
              "the host. Its exit status 0 says that the host is off.")  # fmt: skip
@click.option("--wait", is_flag=True,
              help="Wait for a pool that is not there, or was destroyed.")  # fmt: skip
@json_option
def watch(url: str, interval: float, fence_command: str, wait: bool, as_json: bool) -> None:
    """Recover dead clients promptly, and print a line each time. Ctrl-C ends it.

    When the pool is destroyed, the command says so and ends with exit status 1, unless it is told
    to wait for the next one of that name. Clients recover dead clients without it, too; no client
    depends on this process.
    """
    said = ""
    try:
        while True:
            try:
                _watch_one(url, interval, shlex.split(fence_command), as_json)
            except (PoolNotFound, PoolIncomplete) as error:
                if not wait:
                    raise
                if str(error) != said:
                    click.echo(f"waiting: {error}", err=True)
                said = str(error)
            time.sleep(WAIT_S)
    except KeyboardInterrupt:
        click.echo("ended", err=True)


def _watch_one(url: str, interval_s: float, fence_command: list[str], as_json: bool) -> None:
    """Watch the pool until it is destroyed, which raises PoolNotFound."""
    with pool_of(url) as pool:
        click.echo(f"watching {pool.url}; Ctrl-C ends it", err=True)
        for found in pool.watch(interval_s, fence_command):
            if as_json:
                print_line(found)
            else:
                recovered = ", ".join(map(str, found["clients"])) or "none"
                click.echo(
                    f"{_clock(found['time_ns'])}  recovered clients: {recovered}; gave back "
                    f"{found['objects']} objects, {found['blocks']} blocks"
                )


@click.command()
@pool_argument
@json_option
def hosts(url: str, as_json: bool) -> None:
    """Show which hosts use a pool: their clients, leases and clocks, and the pool's memory.

    Before them, what the hosts have agreed on (lease, fence, coherence, durability), and since when
    a durable pool is whole.

    In a pool of several hosts the command takes half a lease, to see which clients renew theirs. A
    clock is shown as its lead over this host's clock.
    """
    with pool_of(url) as pool:
        parameters = dataclasses.asdict(pool.parameters)
        report: dict[str, Any] = {
            "url": pool.url, "protocol": PROTOCOL, "release": RELEASE,
            "terms": {name: parameters[name] for name in TERMS},
            "whole_since": pool.whole_since(), "hosts": pool.hosts(), "nodes": pool.nodes(),
        }  # fmt: skip
    if as_json:
        print_json(report)
        return
    out = console()
    terms = ", ".join(f"{name} {value}" for name, value in report["terms"].items())
    out.print(plain(f"{report['url']}: protocol {PROTOCOL}, {terms}"))
    if report["whole_since"]:
        out.print(plain(f"durable: {report['whole_since']}"))
    out.print(_host_rows(report["hosts"]))
    out.print(_rows("nodes", report["nodes"]))


def _host_rows(hosts: list[dict[str, Any]]) -> Any:
    made = table("hosts", "host", "machine", "boot", "namespace", "release", "clients", "pids",
                 "lease", "clock", right=("clients", "clock"))  # fmt: skip
    for host in hosts:
        name = host["host"] + (" (here)" if host["here"] else "")
        renewed, clock = host["renewed_s"], host["clock_s"]
        lease = host["lease"] + ("" if renewed is None else f" {renewed:.1f} s ago")
        made.add_row(
            plain(name), host["machine"], host["boot"], host["namespace"],
            plain(" ".join(sorted(set(host["releases"])))), str(len(host["clients"])),
            " ".join(map(str, host["pids"])), lease, "" if clock is None else f"{clock:+.3f} s",
        )  # fmt: skip
    return made


@click.command("fail-node")
@pool_argument
@click.argument("node", type=click.IntRange(0))
@json_option
def fail_node(url: str, node: int, as_json: bool) -> None:
    """Mark memory node NODE as failed: its device is lost, so the pool cannot be opened with it.

    Only the control segment is opened for that. Clients go on without the node.
    """
    marked = segments.fail_node(url, node, any_owner=any_owner())
    if as_json:
        print_json({"node": node, "marked": marked})
    else:
        click.echo(f"node {node} {'is' if marked else 'was already'} marked as failed")


def _replicas_of(parameters: dict[str, Any]) -> int:
    """The most replicas that a store with these parameters has of anything."""
    return max(int(parameters.get(name, 1)) for name in ("replicas", "index_replicas"))


@click.command("add-node")
@pool_argument
@click.option(
    "--size",
    help="Memory to add for each of the --count nodes, rounded up to whole nodes: bytes, or text "
    "such as 1GiB. `--count 2 --size 128MiB` on nodes of 64 MiB adds 4.  [default: one node's]",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Nodes that are added together: at least as many as a store has replicas, or it does not "
    "use them.",
)
@json_option
def add_node(url: str, size: str | None, count: int, as_json: bool) -> None:
    """Give a pool that is in use more memory nodes.

    From then on, stores take memory there for what has no room where it belongs. Nodes have the
    size that those of the pool have. The command names the stores that do not use them.
    """
    with pool_of(url) as pool:
        done = pool.add_node(size, count)
        made = {store["name"]: store["parameters"] for store in pool.stores()}
        needed = {name: _replicas_of(parameters) for name, parameters in made.items()}
        done["unused_by"] = {name: most for name, most in needed.items() if most > count}
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"added to {pool.url} in {time_text(done['took_ns'])}: {nodes_text(done['nodes'])}, "
            f"{size_text(done['bytes'])} in all"
        )
        for name, replicas in done["unused_by"].items():
            some = " for its index" if made[name].get("replicas", 1) <= count else ""
            click.echo(
                f"store {name} does not use them{some}: it has {replicas} replicas, which takes "
                f"--count {replicas}",
                err=True,
            )


@click.command("replace-node")
@pool_argument
@click.argument("node", type=click.IntRange(0))
@json_option
def replace_node(url: str, node: int, as_json: bool) -> None:
    """Give memory node NODE, which is lost, new memory, and fill it from the nodes that are left.

    Clients go on; those of replicated stores wait until the node is filled. Keys that only this
    node had are gone, and stay an error.
    """
    with pool_of(url) as pool:
        done = pool.replace_node(node)
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"replaced node {node} of {pool.url} in {time_text(done['took_ns'])}: "
            f"{done['objects']} objects in {done['blocks']} blocks, {done['regions']} regions, "
            f"{size_text(done['bytes'])}"
        )


@click.command()
@pool_argument
@click.option("--force", is_flag=True, help="On dax: end the processes that use it first.")
@json_option
def destroy(url: str, force: bool, as_json: bool) -> None:
    """Remove a pool, also a half-created or damaged one.

    Processes that have it open go on with the memory that they have mapped. On dax that memory will
    be the next pool's: there the command names them and removes nothing, or ends them.
    """
    removed = limpet.destroy(url, any_owner=any_owner(), force=force)
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"removed {', '.join(removed)}")
