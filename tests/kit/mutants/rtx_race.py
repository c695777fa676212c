"""Known-bad variants of transactions over hash stores: a method of a part is another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from kit.variants import vary
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.parts import Part, held_word
from limpet.stores.transactions.reads import Reads
from limpet.stores.transactions.slot_writes import Change


class Mutant(NamedTuple):
    name: str
    owner: type
    method: str
    wrong: Callable[..., Any]


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Make the transactions of this block use the variant."""
    with pytest.MonkeyPatch.context() as patch:
        vary(patch, mutant.owner, mutant.method, mutant.wrong)
        yield


def only_what_is_there(reads: Reads, key: bytes, read: Any) -> bool:
    """Absent keys are not noted, so no client looks at them again."""
    return True if read.value is None else NOTE_KEY(reads, key, read)


def let_go_before(part: Part, change: Change, committed: bool) -> int:
    """The slot is what it was, and whose it was, before it is what it becomes."""
    held = held_word(part.reference, change)
    part.endpoint.cas(change.slot, held, change.old)
    new = change.new if committed else change.old
    return int(part.endpoint.post_cas(change.slot, change.old, new))


NOTE_KEY: Final = Reads.note_key
NOT_VALIDATED: Final = Mutant("reads-are-not-validated", Commit, "validate", lambda commit: True)
ABSENT_NOT_VALIDATED: Final = Mutant(
    "absent-keys-are-not-validated", Reads, "note_key", only_what_is_there
)
LET_GO_BEFORE: Final = Mutant("let-go-of-before-it-is-changed", Part, "let_go_of", let_go_before)
NOT_HELD_AGAIN: Final = Mutant(
    "what-was-read-is-not-looked-at-again", Reads, "hold_again", lambda reads: True
)
