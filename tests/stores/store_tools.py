"""What the tests of stores share."""

from __future__ import annotations

from typing import Any


def sound(store: Any) -> dict[str, int]:
    """Check the store and audit its pool; nothing may be leaked or in anybody's hand."""
    store.check()
    audit = store.pool.audit()
    assert sum(audit[name] for name in audit if name != "total") == audit["total"]
    assert audit["leaked"] == audit["held"] == 0
    return dict(audit)
