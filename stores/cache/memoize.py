"""`Cache.memoize`: a function whose results are in a cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from limpet.shm.errors import ParameterError

F = TypeVar("F", bound=Callable[..., object])

TUPLES: Final = ("pickle", "msgpack")
"""Codecs whose keys may be tuples."""
AS_ADDRESS: Final[Any] = object.__repr__
"""Of an object that does not say what it is: another one in each process."""


class Computes(NamedTuple):
    """The part of a cache that `memoize` needs: the codec's name, and four functions."""

    codec: str
    encode_key: Callable[[Any], bytes]
    get_or_compute: Callable[..., Any]
    get_or_compute_async: Callable[..., Any]
    delete: Callable[..., bool]


def memoized(
    cache: Computes, key: Callable[..., Any] | None, how: dict[str, Any]
) -> Callable[[F], F]:
    """The decorator. `how`: arguments of `get_or_compute`."""

    def decorate(function: F) -> F:
        key_of = key or functools.partial(_key, cache.codec, _name_of(function))

        def explain(made: Any) -> None:
            """Raise another TypeError if one was raised because of the key."""
            if key is None:
                _demand_key(cache, made)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **named: Any) -> Any:
                call = functools.partial(function, *args, **named)
                made = key_of(*args, **named)
                try:
                    return await cache.get_or_compute_async(made, call, **how)
                except TypeError:
                    explain(made)
                    raise

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **named: Any) -> Any:
                call = functools.partial(function, *args, **named)
                made = key_of(*args, **named)
                try:
                    return cache.get_or_compute(made, call, **how)
                except TypeError:
                    explain(made)
                    raise

        def forget(*args: Any, **named: Any) -> bool:
            """Delete the result for these arguments; whether there was one."""
            return cache.delete(key_of(*args, **named))

        wrapper.forget = forget  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def _name_of(function: Callable[..., object]) -> str:
    """The name by which all processes know a function. ParameterError: it has none."""
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ParameterError(
            f"{function!r} has no name of its own: give memoize a key=, a function that makes a "
            "key of the arguments"
        ) from None


def _key(codec: str, name: str, *args: Any, **named: Any) -> Any:
    """A key of a function and its arguments. TypeError: they make none."""
    key = (name, args, tuple(sorted(named.items())))
    if codec in TUPLES:
        return key
    for value in (*args, *named.values()):
        if type(value).__repr__ is AS_ADDRESS:
            raise _no_key(name, f"a {type(value).__name__} is written by its address")
    text = repr(key)
    return text.encode() if codec == "bytes" else text


def _demand_key(cache: Computes, key: Any) -> None:
    """Raise TypeError if a key that `_key` made is none of the cache."""
    try:
        cache.encode_key(key)
    except TypeError as error:
        raise _no_key(key[0], str(error)) from error


def _no_key(name: str, why: str) -> TypeError:
    return TypeError(
        f"the arguments of {name} make no key: {why}. Give memoize a key=, for a method such as "
        "key=lambda self, x: (self.id, x)"
    )
