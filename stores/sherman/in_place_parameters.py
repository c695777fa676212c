"""Parameters of a tree whose nodes are changed in place: checked when made, stored. Words of a
node.

in_place_trees.py gives the meaning of the words. The version counts in a whole word, modulo 2^64:
58,000 years of ten million a second. No other field does: a lock is a client id.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_flag
from limpet.stores.sherman.parameters import TreeParameters

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


LOCK: Final = 0
VERSION: Final = 1
"""Words of a node, at its front."""
META_WORDS: Final = 2
"""Both, which validation reads."""
TRAILER: Final = 16
"""Bytes at its rear: checksum, and the version again."""
NODE_PAIR: Final = 4
"""Bit of a link_address in a client journal: the pair is a node that is being linked, or was
unlinked."""


@dataclasses.dataclass(frozen=True)
class InPlaceParameters(TreeParameters):
    """Those of every tree, and the first steps of rTX section 6.3.

    `optimistic` (+OCC): a client reads a leaf, and locks and validates it when it commits; Sherman
    locks it before it reads it. `idempotent` (+ICommit): version and lock are changed by
    compare-and-swap and not by plain writes.
    """

    optimistic: bool
    idempotent: bool

    overhead: ClassVar[int] = TRAILER

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("optimistic", "idempotent"):
            check_flag(name, getattr(self, name))
        if self.idempotent and not self.optimistic:
            raise ParameterError("idempotent is for what is optimistic")

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        optimistic: bool = False,
        idempotent: bool = False,
        **others: Any,
    ) -> Self:
        """The parameters for a pool; `others` are those of every tree."""
        return super().for_pool(
            pool, layout, optimistic=optimistic, idempotent=idempotent, **others
        )

    @property
    def table_size(self) -> int:
        """Bytes of a tree's region: its root, and the lock table if locks are not in nodes."""
        return self.node_size + (0 if self.optimistic else 8 * (self.objects + 1))
