"""Known-bad parts of a cache: ledgers that miscount, flights and deadlines that are not heeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from limpet.stores.cache.layout import BANKS, HAND, LAP_AT
from limpet.stores.cache.ledger import Ledger


class Late(Ledger):  # type: ignore[misc]
    """An object is taken away from the account before it is linked."""

    def post(self, lap: int, units: int) -> int:
        done = int(super().post(lap, units) or 0)
        self.withdraw(lap, units)
        return done


class Unbounded(Ledger):  # type: ignore[misc]
    """An object is admitted and counted, whatever there is."""

    def admits(self, spare: int) -> bool:
        return True


class Unaware(Ledger):  # type: ignore[misc]
    """The bounds are those that the cache was made with, whatever a resize has made of them."""

    def fits(self, total: int) -> bool:
        made = self.made
        return total >> 36 <= made >> 36 and total & (1 << 36) - 1 <= made & (1 << 36) - 1


class Hasty(Ledger):  # type: ignore[misc]
    """Laps end at once, whatever is at work."""

    def end_lap(self, hand: int) -> bool:
        lap = hand >> LAP_AT
        self.endpoint.store(self.words + BANKS + 8 * (lap + 2 & 7), 0)
        return bool(self.endpoint.cas(self.words + HAND, hand, lap + 1 << LAP_AT) == hand)


class Forgetful(Ledger):  # type: ignore[misc]
    """The hand does not account for the objects that it meets."""

    def restamp(self, head: int, life: int, units: int, lap: int) -> int:
        return life


class Sticky(Ledger):  # type: ignore[misc]
    """Laps never end, so what a kill left is counted for ever."""

    def end_lap(self, hand: int) -> bool:
        return False


def account(store: Any, lap: int, units: int, spare: int) -> bool:
    """Account for an object that is never linked, in an operation; whether it was admitted."""
    store.ledger.post(lap, units)
    store.endpoint.wait()
    return bool(store.ledger.admits(spare))


def with_ledger(store: Any, kind: type[Ledger]) -> None:
    """Give a handle of a store a ledger of another kind."""
    words = store.ledger.words
    store.hold_ledger(kind(store.pool, store.ledger.made))
    store.ledger.words = words


LEDGERS: Final = (Forgetful, Sticky)
"""Those that a kill shows."""


class Wrong:
    """A handle of a cache, one method of which is another one. `wrong`: called with the handle."""

    def __init__(self, store: Any, method: str, wrong: Callable[..., Any]) -> None:
        self.__dict__.update(_store=store, _method=method, _wrong=wrong)

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._store, name)
        return lambda *given: self._wrong(self._store, *given)

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Any:
        return iter(self._store)

    def __contains__(self, key: object) -> bool:
        return key in self._store


def not_taken_over(store: Any, key: bytes, dead: int, patience: int, *early: int) -> Any:
    """`begin_flight` that leaves a key with the dead client that computed it."""
    return store.begin_flight(key, 0, patience)


def computed_by_all(store: Any, key: bytes, dead: int, patience: int, *early: int) -> Any:
    """`begin_flight` that takes a flight from a living client, too."""
    found = store.begin_flight(key, dead, patience)
    return store.begin_flight(key, found[3], patience) if found[0] == 2 else found


def served_for_ever(store: Any, key: bytes) -> Any:
    """`get` that heeds no deadline."""

    def look() -> Any:
        return store.cached.value() if store.index.look_up(store.place, key) else None

    return store.within(look)
