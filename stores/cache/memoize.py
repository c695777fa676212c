"""`Cache.memoize`: a function whose results are in a cache.

All processes find a result by the name of the function and the arguments. Two functions can have
one name: closures, lambdas, a function that is defined again, and those of `__main__` in two
programs. So the name is that of the module, which for a script is its file, with the name in it and
a digest of the function itself: its code, its defaults, and the variables that it has from the
function around it. Functions among these are in the digest in the same way. It is the same in all
processes that run the same source on one version of Python. It does not see what the function finds
in global variables, or what is changed in place behind a variable.

A function for which no such name can be made is refused; it needs a `key=`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from limpet.shm.errors import ParameterError
from limpet.stores.core.codecs import PROTOCOL

F = TypeVar("F", bound=Callable[..., object])

TUPLES: Final = ("pickle", "msgpack")
"""Codecs whose keys may be tuples."""
SCRIPTS: Final = ("__main__", "__mp_main__")
"""The module of a program, and that module in a process that multiprocessing has spawned."""
AS_ADDRESS: Final[Any] = object.__repr__
"""Of an object that does not say what it is: another one in each process."""

UNSET: Final = "no value"
PLAIN: Final = (str, int, float, bool, bytes, tuple, type(None))
_wrappers: weakref.WeakSet[Any] = weakref.WeakSet()
"""The functions that are memoized, as their programs see them."""


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
    if key is not None and not callable(key):
        raise TypeError(
            f"the key of memoize is a function that makes a key of the arguments, not {key!r}"
        )

    def decorate(function: F) -> F:
        key_of = key or functools.partial(_key, cache.codec, FunctionName(function))

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
        _wrappers.add(wrapper)
        return wrapper  # type: ignore[return-value]

    return decorate


class FunctionName:
    """The name of a function, which no other function has. ParameterError: there is none."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.cells: tuple[Any, ...] = getattr(function, "__closure__", None) or ()
        values = [_content(cell) for cell in self.cells]
        self.known = values, _name_of(function)

    def __str__(self) -> str:
        """The name with the variables as they are now."""
        seen, text = self.known
        if not self.cells:
            return text
        values = [_content(cell) for cell in self.cells]
        if any(one is not other for one, other in zip(values, seen, strict=True)):
            self.known = values, _name_of(self.function)
        return self.known[1]


def _content(cell: types.CellType) -> Any:
    """The value of a variable; UNSET: it has none yet, as the name of a function in itself."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET


def _name_of(function: Callable[..., object]) -> str:
    try:
        module, name = function.__module__, function.__qualname__
    except AttributeError:
        raise _no_name(function, "it has no name of its own") from None
    if not isinstance(function, types.FunctionType):
        if _found(module, name) != function:
            raise _no_name(function, "it is no Python function, and its name does not lead to it")
        return f"{module}.{name}"
    found = sys.modules.get(module)
    if module in SCRIPTS and found is not None:
        spec, file = getattr(found, "__spec__", None), getattr(found, "__file__", None) or ""
        if spec is None and not Path(file).is_file():
            raise _no_name(function, f"{module} is no file, so all programs without one have it")
        module = str(Path(file).resolve()) if spec is None else spec.name
    try:
        digest = hashlib.blake2b(_of_value(function, ()), digest_size=12).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_name(function, str(error)) from error
    return f"{module}.{name}#{digest}"


def _found(module: str, name: str) -> Any:
    """The object that other processes find by a name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _of_function(function: types.FunctionType, around: tuple[Any, ...]) -> bytes:
    """The parts that tell a function from others, as bytes; `around`: the functions in which it was
    found.

    Raises TypeError, ValueError, RecursionError: one of its values cannot be written.
    """
    if function in around:
        return b"itself %d" % around.index(function)
    around = (*around, function)
    code = function.__code__
    values = {
        "the defaults": function.__defaults__,
        "the defaults of keywords": function.__kwdefaults__,
        **dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True)),
    }
    parts = [_of_code(code)]
    for name, value in values.items():
        try:
            parts.append(_of_value(value, around))
        except Exception as error:  # a class may raise anything when its object is pickled
            raise TypeError(f"{name} cannot be written: {error}") from error
    return _joined(parts)


def _of_code(code: types.CodeType) -> bytes:
    """A function's code, without its place in the file."""
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    handlers: bytes = getattr(code, "co_exceptiontable", b"")
    texts = repr((numbers, names)).encode()
    return _joined([code.co_code, handlers, texts, _of_value(code.co_consts, ())])


def _of_value(value: Any, around: tuple[Any, ...]) -> bytes:
    """A default, constant or variable, as bytes that are the same in all processes."""
    while type(value) is types.FunctionType and value in _wrappers:
        value = value.__wrapped__  # type: ignore[attr-defined]
    kind = type(value)
    if kind is types.CodeType:
        return _of_code(value)
    if kind is types.FunctionType:
        return _of_function(value, around)
    if kind is types.ModuleType:
        return _joined([b"module", value.__name__.encode()])
    if kind in (tuple, list):
        return _joined([kind.__name__.encode(), *(_of_value(one, around) for one in value)])
    if kind in (set, frozenset):
        return _joined([kind.__name__.encode(), *sorted(_of_value(one, around) for one in value)])
    if kind is dict:
        return _joined([b"dict", _of_value(list(value.items()), around)])
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    pickler.fast = True  # else the bytes depend on which objects are one
    pickler.dump(value)
    return buffer.getvalue()


def _joined(parts: Iterable[bytes]) -> bytes:
    """One text of bytes for parts, in which no other parts are written."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _no_name(function: Callable[..., object], why: str) -> ParameterError:
    return ParameterError(
        f"{function!r} has no name by which all processes know it: {why}; give memoize a key=, a "
        "function that makes a key of the arguments"
    )


def _key(codec: str, called: FunctionName, *args: Any, **named: Any) -> Any:
    """A key of a function and its arguments. TypeError: they make none."""
    name = str(called)
    options = tuple(sorted(named.items()))
    if codec in TUPLES:
        # A function may do something else with a subclass, though its object is the same key.
        kinds = tuple(_kinds((args, options)))
        return (name, args, options, kinds) if any(kinds) else (name, args, options)
    key = (name, args, options)
    for value in (*args, *named.values()):
        if type(value).__repr__ is AS_ADDRESS:
            raise _no_key(name, f"a {type(value).__name__} is written by its address")
    text = repr(key)
    return text.encode() if codec == "bytes" else text


def _kinds(value: Any) -> Iterator[str]:
    """The types of a value and of its parts; nothing for a plain one."""
    kind = type(value)
    yield "" if kind in PLAIN else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, tuple):
        for part in value:
            yield from _kinds(part)


def _demand_key(cache: Computes, key: Any) -> None:
    """Raise TypeError if a key that `_key` made is none of the cache."""
    try:
        cache.encode_key(key)
    except TypeError as error:
        raise _no_key(key[0], str(error)) from error


def _no_key(name: str, why: str) -> TypeError:
    shown = name.rpartition("#")[0] or name
    return TypeError(
        f"the arguments of {shown} make no key: {why}. Give memoize a key=, for a method such as "
        "key=lambda self, x: (self.id, x)"
    )
