"""Names of stores and channels; and of keys and kinds, in messages."""

from typing import Final

NAME_SIZE_MAX: Final = 100
SHOWN_MAX: Final = 24
"""Bytes of a key that a message shows."""


def is_name(name: object, without: str = "") -> bool:
    """Whether that is text of 1 to NAME_SIZE_MAX bytes of UTF-8, without these characters."""
    if not isinstance(name, str) or not name or set(name) & set(without):
        return False
    try:
        return len(name.encode()) <= NAME_SIZE_MAX
    except UnicodeEncodeError:
        return False


def a_store(kind: str) -> str:
    """A store of that kind, in a message."""
    return f"{'an' if kind.startswith('rtx') else 'a'} {kind} store"


def shown(key: bytes) -> str:
    """A key in a message: its first bytes."""
    return f"{key[:SHOWN_MAX]!r}{'...' if len(key) > SHOWN_MAX else ''}"
