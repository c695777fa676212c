"""What the tests of stores share."""

from __future__ import annotations

from typing import Any


def sound(store: Any) -> dict[str, int]:
    """Recover the dead, check the store, audit its pool; nothing may be leaked or in hand."""
    store.recover()
    store.check()
    audit = store.pool.audit()
    assert sum(audit[name] for name in audit if name != "total") == audit["total"]
    assert audit["leaked"] == audit["held"] == 0, audit
    return dict(audit)
