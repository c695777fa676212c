"""`limpet metrics`: the metrics of stores/metrics.py for Prometheus, by its own client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from limpet.cli.common import pool_argument, pool_of
from limpet.shm.housekeeping import LOOK_INTERVAL_S, require_there
from limpet.stores.figures import Figures
from limpet.stores.metrics import families

if TYPE_CHECKING:
    from limpet.stores.pool import Pool


@click.command()
@pool_argument
@click.option("--listen", default="127.0.0.1:9400", show_default=True, metavar="HOST:PORT",
              help="Where Prometheus asks. No client is asked for a password.")  # fmt: skip
@click.option("--once", is_flag=True, help="Write the metrics to stdout, and end.")
def metrics(url: str, listen: str, once: bool) -> None:
    """Serve the figures of a pool to Prometheus: of all its processes, living and dead.

    One such process is enough for a pool, whatever the number of workers; it may be killed and
    started again, and counters go on. docs/operations.md lists the metrics, and
    examples/grafana.json is a dashboard. When the pool is destroyed, the command says so and ends
    with exit status 1. Needs `pip install 'limpet[metrics]'`.
    """
    try:
        import prometheus_client
    except ModuleNotFoundError:
        raise click.ClickException(
            "limpet metrics needs prometheus_client: pip install 'limpet[metrics]'"
        ) from None
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise click.UsageError(f"--listen takes HOST:PORT, not {listen!r}")
    with pool_of(url) as pool:
        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        registry.register(PoolCollector(pool))
        if once:
            click.echo(prometheus_client.generate_latest(registry).decode(), nl=False)
            return
        try:
            server, thread = prometheus_client.start_http_server(
                int(port), host.strip("[]"), registry
            )
        except OSError as error:
            raise click.ClickException(f"cannot listen on {listen}: {error.strerror}") from error
        click.echo(f"serving http://{host}:{server.server_port}/metrics of {pool.url}", err=True)
        try:
            while thread.is_alive():
                require_there(pool)
                thread.join(LOOK_INTERVAL_S)
        except KeyboardInterrupt:
            click.echo("ended", err=True)
        finally:
            server.shutdown()


class PoolCollector:
    """Looks at a pool whenever Prometheus asks."""

    def __init__(self, pool: Pool) -> None:
        self._figures = Figures(pool)
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        """The metrics, of one look."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            found = self._figures.look()
        for family in families(found):
            cls = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            made = cls(family.name, family.text, labels=family.labels)
            for labels, value in family.samples:
                made.add_metric(labels, value)
            yield made
