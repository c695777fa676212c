"""`limpet serve`: the memory nodes of a pool for clients of other hosts (docs/network.md)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, Final

import click

from limpet.cli.common import any_owner, nodes_text, pool_argument
from limpet.shm.errors import ParameterError, PoolNotFound
from limpet.shm.net.backend import parse_address, require_compiled
from limpet.shm.net.wire import CLIENTS, CLIENTS_MAX, read_secret

CONTROL_S: Final = 10.0
"""How long a server of nodes that are away tries to reach the control server when it starts."""
AGAIN_S: Final = 0.2


def _once_control_answers(make: Callable[[], Any]) -> Any:
    """What `make` returns, once the control server answers. PoolNotFound: it does not, in time."""
    deadline, told = time.monotonic() + CONTROL_S, False
    while True:
        try:
            return make()
        except PoolNotFound as error:
            if time.monotonic() >= deadline:
                raise
            if not told:
                click.echo(f"{error}; trying for {CONTROL_S:g} s", err=True)
            told = True
            time.sleep(AGAIN_S)


@click.command()
@pool_argument
@click.option("--listen", required=True, metavar="ADDR:PORT",
              help="The address of this host at which clients connect; port 0: any.")  # fmt: skip
@click.option("--secret-file", required=True, type=click.Path(dir_okay=False),
              help="The secret that clients must have, too; mode 600.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1, CLIENTS_MAX), default=CLIENTS,
              show_default=True, help="Connections at a time.")  # fmt: skip
@click.option("--node", "served", type=int, multiple=True, metavar="NUMBER",
              help="Serve only this memory node; may be repeated.  [default: all]")  # fmt: skip
@click.option("--control", default="", metavar="net[+etcd]://HOST:PORT/NAME",
              help="The pool of which these nodes are away from its control segment, and the "
              "server that has that, which is awaited for 10 s. The nodes are made at the first "
              "start.")  # fmt: skip
@click.option("--membership", default="", metavar="etcd://HOST:PORT[,HOST:PORT]",
              help="One of the pool's servers with this option has the control segment; when it is "
              "gone, another one takes that over. Clients open net+etcd://.")  # fmt: skip
def serve(
    url: str, listen: str, secret_file: str, clients: int, served: tuple[int, ...], control: str,
    membership: str,
) -> None:  # fmt: skip
    """Serve the memory nodes of a pool of this host over a network, until it is interrupted.

    Clients open net://ADDR:PORT/NAME, with the same secret in the file LIMPET_SECRET_FILE. The pool
    is one made with --multi-host, or with --away. Its memory outlives the server. Use a private
    network: what goes over it is not encrypted.
    """
    host, port = parse_address(listen)
    if membership and (served or control):
        raise ParameterError(
            "--membership is for servers of the control segment and all nodes of their host; write "
            "--control net+etcd://... for one of nodes that are away"
        )
    require_compiled()
    from limpet.shm.net.server import Server

    secret = read_secret(secret_file)

    def make() -> Server:
        return Server(
            url, host, port, secret,
            clients=clients, served=served, any_owner=any_owner(), control=control,
            membership=membership,
        )  # fmt: skip

    server = _once_control_answers(make) if control else make()

    def stop(*_: Any) -> None:
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    what = nodes_text(server.served) if server.served else "its control segment"
    address = f"net://{host}:{server.port}/{server.name}"
    if membership and (other := server.entry.other()):
        click.echo(f"standing by for {server.url}, which {other.partition(' ')[0]} serves")
    if server.stand_by():
        click.echo(f"serving {server.url}, {what}, at {address}")
    server.run()
