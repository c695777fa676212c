"""`memoize`: each function has a name of its own, or is refused."""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
from typing import Any

import pytest

import limpet


@pytest.fixture
def cache(pools: Any) -> Any:
    return pools(nodes=1, node_size="8MiB").cache("test")


def discounted(rate: int) -> Any:
    return lambda price: price * (100 - rate) // 100


def times(factor: int) -> Any:
    """A decorator, which gives its functions their names."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def multiplied(*args: Any) -> Any:
            return factor * function(*args)

        return multiplied

    return decorate


def defined(body: str, **names: Any) -> Any:
    """The function `f` of a module, as its source has it."""
    exec(body, names := {"__name__": "shop", **names})
    return names["f"]


def late() -> list[Any]:
    return [lambda x: x + number for number in range(3)]  # noqa: B023


NAMESAKES = {
    "closures": [discounted(10), discounted(50)],
    "lambdas": [lambda x, n=n: x + n for n in range(3)],
    "keywords": [defined(f"def f(x, *, n={n}): return x + n") for n in range(3)],
    "defined again": [defined(f"def f(x): return x + {n}") for n in (1, 1000)],
    "constants inside": [defined(f"def f(x): return (lambda: x + {n})()") for n in (1, 1000)],
    "sets": [
        defined("def f(x): return x in {'a', 'b', 100}"),
        defined("def f(x): return x in {'a', 'b'}"),
    ],
    "handlers": [
        defined("def f(x):\n try: y = x / 0\n except ZeroDivisionError: y = 1\n return y"),
        defined("def f(x):\n try: y = x / 0\n except ArithmeticError: y = 2\n return y"),
    ],
    "decorated": [times(2)(defined("def f(x): return x")), times(3)(defined("def f(x): return x"))],
    "functions inside": [times(2)(discounted(10)), times(2)(discounted(50))],
}


@pytest.mark.parametrize("functions", NAMESAKES.values(), ids=NAMESAKES)
def test_functions_of_one_name_have_results_of_their_own(cache: Any, functions: list[Any]) -> None:
    memoized = [cache.memoize()(function) for function in functions]
    expected = [function(100) for function in functions]
    assert [one(100) for one in memoized] == expected == [one(100) for one in memoized]
    again = [cache.memoize()(function) for function in functions]
    assert [one(100) for one in again] == expected
    assert cache.stats()["computations"] == len(functions)


def test_memoized_function_follows_its_variables(cache: Any) -> None:
    rate = 10

    @cache.memoize()
    def price(full: int) -> int:
        return full * (100 - rate) // 100

    assert price(100) == 90
    rate = 50
    assert price(100) == 50
    assert [cache.memoize()(one)(1) for one in late()] == [3, 3, 3]


def test_memoized_function_may_call_itself(cache: Any) -> None:
    @cache.memoize()
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    assert fib(30) == 832_040
    assert cache.stats()["computations"] == 31


PROGRAM = """
RATE = {rate}
def f(price):
    return price * (100 - RATE) // 100
"""


def test_main_of_two_programs_are_two(cache: Any, tmp_path: Any, monkeypatch: Any) -> None:
    def run(name: str | None, rate: int, module: str = "__main__") -> Any:
        main = types.ModuleType(module)
        if name is not None:
            (tmp_path / name).write_text(PROGRAM.format(rate=rate))
            main.__file__ = str(tmp_path / name)
        monkeypatch.setitem(sys.modules, module, main)
        exec(PROGRAM.format(rate=rate), main.__dict__)
        return cache.memoize()(main.f)

    assert run("one.py", 10)(100) == 90
    assert run("two.py", 50)(100) == 50
    assert run("one.py", 0, "__mp_main__")(100) == 90
    assert cache.stats()["computations"] == 2
    with pytest.raises(limpet.ParameterError, match=r"is no file.*give memoize a key="):
        run(None, 10)


def test_function_without_a_name_of_its_own_is_refused(cache: Any) -> None:
    lock = threading.Lock()

    def locked(n: int) -> int:
        with lock:
            return n

    for function in (locked, [].append, functools.lru_cache(discounted(3)), print.__call__):
        with pytest.raises(limpet.ParameterError, match=r"no name.*give memoize a key="):
            cache.memoize()(function)
    assert cache.memoize()(math.factorial)(5) == 120


def test_argument_of_a_subclass_has_a_result_of_its_own(cache: Any) -> None:
    kind_of = cache.memoize()(lambda *args, **named: type(args[0] if args else named["x"]).__name__)
    own = type("Markup", (str,), {})("a")
    pairs = [kind_of("a"), kind_of(own), kind_of(x="a"), kind_of(x=own)]
    assert pairs == ["str", "Markup", "str", "Markup"]
