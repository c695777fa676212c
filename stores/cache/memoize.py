"""`Cache.memoize`: a function whose results are in a cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., object])

TUPLES: Final = ("pickle", "msgpack")
"""Codecs whose keys may be tuples."""


class Computes(NamedTuple):
    """The part of a cache that `memoize` needs: the codec's name, and three methods."""

    codec: str
    get_or_compute: Callable[..., Any]
    get_or_compute_async: Callable[..., Any]
    delete: Callable[..., bool]


def memoized(
    cache: Computes, key: Callable[..., Any] | None, how: dict[str, Any]
) -> Callable[[F], F]:
    """The decorator. `how`: arguments of `get_or_compute`."""

    def decorate(function: F) -> F:
        name = f"{function.__module__}.{function.__qualname__}"
        key_of = key or functools.partial(_key, cache.codec, name)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **named: Any) -> Any:
                call = functools.partial(function, *args, **named)
                return await cache.get_or_compute_async(key_of(*args, **named), call, **how)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **named: Any) -> Any:
                call = functools.partial(function, *args, **named)
                return cache.get_or_compute(key_of(*args, **named), call, **how)

        def forget(*args: Any, **named: Any) -> bool:
            """Delete the result for these arguments; whether there was one."""
            return cache.delete(key_of(*args, **named))

        wrapper.forget = forget  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def _key(codec: str, name: str, *args: Any, **named: Any) -> Any:
    """A key of a function and its arguments."""
    key = (name, args, tuple(sorted(named.items())))
    if codec in TUPLES:
        return key
    text = repr(key)
    return text.encode() if codec == "bytes" else text
