"""This release of limpet, and the number of its protocol.

PROTOCOL stands in every superblock (superblock.py). It names the words in shared memory: where they
are, what their bits mean, and in which order clients change them. Clients of two releases with the
same number work on one pool; a release with another number refuses the pool. So the number goes up
whenever the meaning of any word changes. `tests/shm/test_layout.py` fails when a layout changes and
the number does not; it cannot see a meaning that changes while the layout stays.

RELEASE is for people: each client writes it into its slot, as 8 bytes of text (slots.py).
"""

from typing import Final

RELEASE: Final = "0.1.0"
PROTOCOL: Final = 4
WORD_SIZE: Final = 8


def text_word(text: str) -> int:
    """The first 8 bytes of a text, as a word of a client slot."""
    return int.from_bytes(text.encode()[:WORD_SIZE], "little")


def text_of(word: int) -> str:
    """The text in such a word, for people."""
    text = word.to_bytes(WORD_SIZE, "little").rstrip(b"\0").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)
