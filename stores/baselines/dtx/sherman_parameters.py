"""Parameters of a `dtx-sherman` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from limpet.shm.parameters import CLIENTS_MAX, check_fields
from limpet.stores.baselines.dtx.recovery import stop_size
from limpet.stores.sherman.in_place_parameters import InPlaceParameters

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


@dataclasses.dataclass(frozen=True)
class DtxParameters(InPlaceParameters):
    """Those of trees in place, always `optimistic`; `clients`: slots of the pool, each of which
    has a word (recovery.py)."""

    clients: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, clients=(1, CLIENTS_MAX))

    @classmethod
    def for_pool(cls, pool: PoolParameters, layout: NodeLayout, **others: Any) -> Self:
        """The parameters for a pool; `others` are those of every tree, and `idempotent`."""
        return super().for_pool(
            pool, layout, **{**others, "optimistic": True, "clients": pool.clients}
        )

    @property
    def table_size(self) -> int:
        """Bytes of a tree's region: its root, and the words that stop it (recovery.py)."""
        return self.node_size + stop_size(self.clients)
