"""The form in which stores leave a pool: lines of JSON, of `limpet dump` and of snapshots.

A dump is a head and an entry a line (cli/dumps.py); a snapshot is the dumps of all stores, and more
(snapshots.py). Here are the head and the fields of an entry.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_whole
from limpet.stores.cache.cache import tag_numbers, tags_of_numbers
from limpet.stores.cache.layout import TAGS_MAX, US_PER_MS
from limpet.stores.cache.parameters import TTL_MAX_MS
from limpet.stores.cache.validity import Terms
from limpet.stores.registry import CACHES

FORMAT: Final = 1
PARAMETERS: Final = ("max_bytes", "max_items", "ttl_ms", "policy")
"""Of a cache, what its dump has."""
DEADLINE_MAX_MS: Final = 1 << 50


def head_of(store: Any, name: str, codec: str) -> dict[str, Any]:
    """The head of a dump of a store, or cache."""
    head: dict[str, Any] = {"limpet": FORMAT, "store": name, "kind": store.kind, "codec": codec}
    if store.kind in CACHES:
        parameters = {field: getattr(store.parameters, field) for field in PARAMETERS}
        parameters.update(zip(("max_items", "max_bytes"), store.limits(), strict=True))
        head["parameters"] = parameters
    return head


def fields_of(store: Any, key: bytes) -> dict[str, Any] | None:
    """The fields of an entry besides its key, with its value as bytes; None: it does not count."""
    if store.kind not in CACHES:
        value = store.get(key)
        return None if value is None else {"value": value}
    entry = store.entry(key)
    if entry is None:
        return None
    value, _, deadline, times, tags = entry
    if deadline:
        deadline += wall_shift_us(store)
    more = {
        "deadline_ms": deadline // US_PER_MS,
        "slide_ms": times & TTL_MAX_MS,
        "stale_ms": times >> 32,
        "tags": tag_numbers(tags),
    }
    return {"value": value, **{name: one for name, one in more.items() if one}}


def wall_shift_us(channel: Any) -> int:
    """What the wall's clock shows more than the pool's (pool_clock.py)."""
    return int(time.time_ns() // 1000 - channel.endpoint.microseconds())


def terms_of(entry: dict[str, Any]) -> Terms | None:
    """The terms of an entry of a cache; None: it has expired. Raises ParameterError, TypeError."""
    times = []
    for name, most in (
        ("deadline_ms", DEADLINE_MAX_MS), ("slide_ms", TTL_MAX_MS), ("stale_ms", TTL_MAX_MS),
    ):  # fmt: skip
        time_ms = entry.get(name, 0)
        check_whole(name, time_ms, 0, most)
        times.append(time_ms)
    deadline, slide, stale = times
    numbers = list(entry.get("tags", ()))
    for number in numbers:
        check_whole("the number of a tag", number, 1, TAGS_MAX - 1)
    left = deadline - time.time_ns() // 1_000_000
    if deadline and left <= 0:
        return None
    tags = tags_of_numbers(numbers)
    return Terms(left if deadline else 0, slide, stale, tags)


def read_head(line: str) -> dict[str, Any]:
    """The head of a dump: its texts, `decoded` and `parameters`. ParameterError: it is none."""
    try:
        head = json.loads(line)
        parameters = dict(head.get("parameters", {}))
        if head["limpet"] == FORMAT and set(parameters) <= set(PARAMETERS):
            texts = {name: str(head[name]) for name in ("store", "kind", "codec")}
            return {**texts, "decoded": bool(head.get("decoded")), "parameters": parameters}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ParameterError(f"it does not begin a dump of format {FORMAT}")
