"""The command line of limpet: `limpet`, or `python -m limpet`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

import limpet
from limpet.cli.common import Commands

COMMANDS: Final = {
    "add-node": ("cli.pools", "Give a pool in use more memory nodes."),
    "bench": ("bench.cli", "Measure limpet's stores."),
    "cache": ("cli.dumps", "Show the counts of a cache; get, set or clear its keys."),
    "create": ("cli.pools", "Make a pool, and stores in it."),
    "delete": ("cli.values", "Delete a key."),
    "demo": ("cli.demo", "Kill workers that rewrite files in a store; verify all."),
    "destroy": ("cli.pools", "Remove a pool, also a damaged one."),
    "drill": ("cli.drill", "Prove that a store keeps its promises: kill, stop, check."),
    "drop": ("cli.values", "Give back a store, with all its memory."),
    "dump": ("cli.dumps", "Write all entries of a store to stdout."),
    "fail-node": ("cli.pools", "Mark a memory node as failed: its device is lost."),
    "get": ("cli.values", "Write the value of a key to stdout."),
    "hosts": ("cli.pools", "Show which hosts use a pool."),
    "inspect": ("cli.pools", "Show a pool: nodes, stores, clients, every byte."),
    "keys": ("cli.dumps", "Write the keys of a store to stdout."),
    "load": ("cli.dumps", "Put the entries of a dump into a store."),
    "ls": ("cli.pools", "List the pools in shared memory."),
    "man": ("cli.man", "Write the manual page to stdout."),
    "metrics": ("cli.metrics", "Serve the figures of a pool to Prometheus."),
    "prune": ("cli.prune", "Remove what killed processes have left."),
    "put": ("cli.values", "Set a key to a value."),
    "rack": ("cli.rack", "Lose a virtual machine that works on a pool."),
    "rename": ("cli.values", "Give a store another name."),
    "replace-node": ("cli.pools", "Give a lost memory node new memory, and fill it."),
    "report": ("bench.cli.report", "Run a drill or benchmark, and write a page about it."),
    "restore": ("cli.snapshots", "Make a pool from a snapshot."),
    "serve": ("cli.serve", "Serve a pool's memory nodes over a network."),
    "snapshot": ("cli.snapshots", "Write a whole pool to a file."),
    "top": ("cli.top", "Show what the processes of a pool do, all the time."),
    "watch": ("cli.pools", "Recover dead clients promptly."),
    "worker": ("cli.worker", "Run calls of a named executor."),
}
"""Of each command the module in limpet that has it, under its name, and a short help."""


class Main(Commands):
    """A group of which only the command that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"limpet.{COMMANDS[name][0]}")
        found: click.Command = getattr(module, name.replace("-", "_"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(limpet.__version__, prog_name="limpet")
def main() -> None:
    """Crash-tolerant key-value stores in shared memory, for many processes without a server.

    POOL is a URL: shm://NAME (or just NAME), file:///DIR, dax:///dev/dax0.0,/dev/dax1.0,
    net://HOST:PORT/NAME
    """


if __name__ == "__main__":
    main(prog_name="limpet")
