"""Names of stores and channels; and of keys and kinds, in messages."""

import contextlib
import io
from typing import Final

from limpet.shm.catalogue.regions import PART
from limpet.stores.core.keys import PlainUnpickler

NAME_SIZE_MAX: Final = 100
PICKLED: Final = b"\x80\x04"
"""How the pickle of a key begins."""
SHOWN_MAX: Final = 24
"""Bytes of a key that a message shows."""
TEXT_MAX: Final = 60
"""Characters of a Python object that a message shows."""
LARGER: Final = (
    "delete entries, or move them to a store of a larger capacity (`limpet dump`, `limpet load`)"
)
"""In the message about a full store that does not grow, or no further."""


def is_name(name: object, without: str = "") -> bool:
    """Whether that is text of 1 to NAME_SIZE_MAX bytes of UTF-8, without zero bytes and these
    characters."""
    if not isinstance(name, str) or not name or set(name) & {PART, *without}:
        return False
    try:
        return len(name.encode()) <= NAME_SIZE_MAX
    except UnicodeEncodeError:
        return False


def a_store(kind: str) -> str:
    """A store of that kind, in a message."""
    return f"{'an' if kind.startswith('rtx') else 'a'} {kind} store"


def shown(key: bytes) -> str:
    """A key in a message, or its beginning; of a mapping that pickles its keys, the object."""
    if key.startswith(PICKLED):
        with contextlib.suppress(Exception):  # then it is no pickle, or one of a further type
            text = repr(PlainUnpickler(io.BytesIO(key)).load())
            return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    return f"{key[:SHOWN_MAX]!r}{'...' if len(key) > SHOWN_MAX else ''}"
