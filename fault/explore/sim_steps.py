"""The text of a transaction in a program (sim_program.py), and random ones.

It is a `t` and its steps, each a letter and a key: `tgaxbpc` gets a, puts and deletes b blindly,
and puts c, at one moment.
    g get, p put, i insert, u update, d delete; x puts and then deletes, without a look;
    s (no key) reads all keys, by a scan where the store is ordered
"""

from __future__ import annotations

import random
import re
from typing import Final

WORD: Final = re.compile(r"(?:[gpiudx][a-d]|s)+")
DRAWN: Final = "ggppiiuudddxxxs"
STEPS_MAX: Final = 4
"""The most steps of a transaction that is drawn."""


def is_transaction(steps: bytes) -> bool:
    """Whether this is the text of a transaction, without its first letter."""
    return WORD.fullmatch(steps.decode()) is not None


def steps_of(text: bytes) -> list[tuple[str, bytes]]:
    """The steps of a transaction: letter and key."""
    return [(word[0], word[1:].encode()) for word in re.findall("[gpiudx][a-d]|s", text.decode())]


def draw_steps(rng: random.Random, keys: tuple[bytes, ...]) -> bytes:
    """The text of a random transaction on these keys."""
    found = []
    for _ in range(rng.randint(1, STEPS_MAX)):
        letter = rng.choice(DRAWN)
        found.append(letter if letter == "s" else letter + rng.choice(keys).decode())
    return "".join(found).encode()
