"""Meters of OpenTelemetry: the figures of a pool, of all its processes, living and dead.

    from limpet.adapters.opentelemetry import observe

    observe(limpet.open("site"))

registers observable instruments with the program's meter provider. They have the names, labels and
values of `limpet metrics` (docs/operations.md), so either is enough, and one process for a pool. Of
several pools, observe all by one call; the attribute `pool` tells them apart. Needs `pip install
'limpet[otel]'` and, as any program that exports its metrics, an SDK with an exporter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

import limpet
from limpet.stores.figures import Figures
from limpet.stores.metrics import Family, families

AGE_S: Final = 0.1
"""A look serves the callbacks of all instruments for so long; they are called one by one."""


def observe(*pools: limpet.Pool, meter_provider: MeterProvider | None = None) -> None:
    """Have the meter provider, or the program's, observe these pools until they are closed.

    The instruments look at the pools whenever a reader collects, and keep the handles.
    """
    looks = [_Look(pool) for pool in pools]
    meter = (meter_provider or get_meter_provider()).get_meter("limpet", limpet.__version__)
    for family in looks[0].families().values() if looks else ():
        make = (
            meter.create_observable_counter
            if family.kind == "counter"
            else meter.create_observable_gauge
        )
        make(family.name, [_observer(look, family.name) for look in looks], "", family.text)


class _Look:
    """The latest look at a pool."""

    def __init__(self, pool: limpet.Pool) -> None:
        self.pool = pool
        self._figures = Figures(pool)
        self._lock = threading.Lock()
        self._at = 0.0
        self._found: dict[str, Family] = {}

    def families(self) -> dict[str, Family]:
        """By name; a new look if the latest one is old."""
        with self._lock:
            if not self._found or time.monotonic() - self._at > AGE_S:
                self._found = {one.name: one for one in families(self._figures.look())}
                self._at = time.monotonic()
            return self._found


def _observer(look: _Look, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observations(options: CallbackOptions) -> Iterator[Observation]:
        if look.pool.closed:
            return
        family = look.families()[name]
        for labels, value in family.samples:
            attributes: dict[str, Any] = dict(zip(family.labels, labels, strict=True))
            yield Observation(value, {"pool": look.pool.url, **attributes})

    return observations
