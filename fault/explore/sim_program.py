"""Programs: the operations of each simulated client of an exploration, one after the other.

As text, clients are separated by `|`, operations by spaces; an operation is a letter and a key:
`ua ga|da|ic` is: client 0 updates a and then gets a, client 1 deletes a, client 2 inserts c.
    i insert, u update, p put, g get, d delete; without a key, r recovers dead clients, n gives
    lost memory nodes new memory, a adds nodes; t and its steps is a transaction (sim_steps.py);
    m and several keys is a `put_many` of these, in this order; x and several keys a
    `delete_many`; w and several operations (i, u, p, g, d), as wuagbpa, are one window of a
    pipeline;
    k gets a key and swaps its value, in two operations; of a cache, in one;
    e, s, f, v are other calls of a cache (sim_cache.py);
    o, z, y, l make, drop, rename and look at stores (sim_names.py)
    channels have other words (sim_subjects.py), and r
Keys a and b are there at the start, c and d are not. Every write has a value of its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final, NamedTuple

from limpet.fault.explore.sim_steps import draw_steps, is_transaction
from limpet.shm.errors import ParameterError

KINDS: Final = {
    "i": "insert", "u": "update", "p": "put", "g": "get", "d": "delete", "r": "recover",
    "n": "replace", "a": "add nodes", "t": "transact",
    "m": "put_many", "x": "delete_many", "w": "window",
    "e": "set briefly", "s": "set sliding", "f": "compute", "k": "swap", "v": "invalidate",
    "b": "resize",
    "o": "open", "z": "drop", "y": "rename", "l": "look",
}  # fmt: skip
LETTERS: Final = {name: letter for letter, name in KINDS.items()}
PRESENT: Final = (b"a", b"b")
ABSENT: Final = (b"c", b"d")
KEYS: Final = PRESENT + ABSENT
RECOVER: Final = "recover"
REPLACE: Final = "replace"
ADD: Final = "add nodes"
TRANSACT: Final = "transact"
PUT_MANY: Final = "put_many"
DELETE_MANY: Final = "delete_many"
WINDOW: Final = "window"
INVALIDATE: Final = "invalidate"
RESIZE: Final = "resize"
LOOK: Final = "look"
SWAP: Final = "swap"
KEYLESS: Final = frozenset((RECOVER, REPLACE, ADD, INVALIDATE, RESIZE, LOOK))
OF_NAMES: Final = frozenset(("open", "drop", "rename", LOOK))
"""Calls that make, drop and look at stores: sim_names.py."""
OF_CACHES: Final = frozenset(("set briefly", "set sliding", "compute", INVALIDATE, RESIZE))
"""Calls that only a cache has: sim_cache.py."""
WRITES: Final = frozenset(("insert", "update", "put", SWAP))
IN_WINDOWS: Final = WRITES - {SWAP} | {"get", "delete"}
VALUE_SIZE: Final = 3400
"""Bytes of a value: four objects of such pairs fill a block, so that memory is scarce."""
_DRAWN: Final = "iiuuppgggdd"
_DRAWN_OF_SWAPS: Final = _DRAWN + "kkk"


class Call(NamedTuple):
    """An operation on a key; `recover`, `replace` and `add nodes` have none, `transact` has its
    steps there, `put_many` and `delete_many` their keys, each of which is a letter, `window` its
    operations."""

    kind: str
    key: bytes = b""


Program = tuple[tuple[Call, ...], ...]


def program_text(program: Program) -> str:
    return "|".join(
        " ".join(LETTERS.get(call.kind, call.kind) + call.key.decode() for call in calls)
        for calls in program
    )


def parse_program(text: str, words: Collection[str] = ()) -> Program:
    """The program of a text; ParameterError names a word that is no operation. `words`: those of a
    channel, which has no others besides `r`."""

    def parse_word(word: str) -> Call:
        if word not in words and KINDS.get(word) != RECOVER:
            raise ParameterError(f"{word!r} is none of {', '.join(dict.fromkeys(words))}, r")
        return Call(RECOVER) if word not in words else Call(word[:1], word[1:].encode())

    def parse_call(word: str) -> Call:
        kind, key = KINDS.get(word[:1]), word[1:].encode()
        if kind == TRANSACT and is_transaction(key):
            return Call(kind, key)
        if (
            kind in (PUT_MANY, DELETE_MANY)
            and key
            and all(key[i : i + 1] in KEYS for i in range(len(key)))
        ):
            return Call(kind, key)
        if kind == WINDOW and window_steps(key):
            return Call(kind, key)
        if kind in (None, TRANSACT, WINDOW) or (
            key not in (b"",) if kind in KEYLESS else key not in PRESENT + ABSENT
        ):
            raise ParameterError(
                f"{word!r} is no operation; write one of i, u, p, g, d, k and a key from a to d, "
                "or r, n or a, or m or x and keys, or w and several of i to d, or a transaction "
                "such as tgaxbs; of a cache also e, s, f and a key, or v or b; of names o, z, y "
                "and a key, or l"
            )
        return Call(kind, key)

    parse = parse_word if words else parse_call
    return tuple(tuple(parse(word) for word in part.split()) for part in text.split("|"))


def window_steps(text: bytes) -> list[Call]:
    """The operations of a window; empty: it is none."""
    steps = [
        Call(KINDS.get(chr(text[at]), ""), text[at + 1 : at + 2]) for at in range(0, len(text), 2)
    ]
    sound = all(step.kind in IN_WINDOWS and step.key in KEYS for step in steps)
    return steps if sound else []


def draw_program(
    rng: random.Random,
    clients: int,
    ops: int,
    recover: bool,
    replace: bool = False,
    add: bool = False,
    transactions: bool = False,
    swaps: bool = False,
) -> Program:
    """A random program on one or two keys; with `transactions`, on all keys, half of it these.

    `recover`: a client may recover dead clients meanwhile. `replace`: a client gives lost nodes new
    memory, in one more operation; another client may repeat that if the first one dies in it.
    `add`: likewise, a client adds nodes.
    `swaps`: values are swapped, too.
    """
    letters = _DRAWN_OF_SWAPS if swaps else _DRAWN
    keys = rng.sample(PRESENT + ABSENT, 1 if rng.random() < 0.6 else 2)
    program = [
        [Call(KINDS[rng.choice(letters)], rng.choice(keys)) for _ in range(ops)]
        for _ in range(clients)
    ]
    for calls in program if transactions else ():
        for op in range(ops):
            if rng.random() < 0.5:
                calls[op] = Call(TRANSACT, draw_steps(rng, PRESENT + ABSENT))
            else:
                calls[op] = calls[op]._replace(key=rng.choice(PRESENT + ABSENT))
    if recover and rng.random() < 0.2:
        rng.choice(program)[rng.randrange(ops)] = Call(RECOVER)
    for kind in [REPLACE] * replace + [ADD] * add:
        for _ in range(rng.choice((1, 1, 2))):
            calls = rng.choice(program)
            calls.insert(rng.randint(0, len(calls)), Call(kind))
    return tuple(tuple(calls) for calls in program)
