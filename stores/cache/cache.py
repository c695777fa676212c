"""`pool.cache`: Python objects that all processes share, until they expire or are evicted.

A `Cache` is a MutableMapping whose entries may be gone at any time. All times are in seconds: an
int, a float or a timedelta (shm/times.py).
A value is encoded when it is set, and decoded anew each time it is read. With the codec "pickle",
which is the default, a read executes code that any writer of the pool may have put there.

`incr`, `cas`, `add`, `replace`, `setdefault` and `pop` are atomic among all processes.
"""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import KeyTooLarge, LimpetError, ParameterError, ValueTooLarge
from limpet.shm.parameters import check_whole
from limpet.shm.times import MS, US, Seconds, units_of
from limpet.stores.cache.flight import Computation, Flights, Seat
from limpet.stores.cache.layout import SWAP, TAG_BITS, TAGS_EACH, TAGS_MAX
from limpet.stores.cache.lock import PREFIX, CacheLock
from limpet.stores.cache.memoize import Computes, memoized
from limpet.stores.cache.parameters import LIFE_MAX_MS, TTL_MAX_MS
from limpet.stores.cache.validity import Terms
from limpet.stores.core.codecs import Codec
from limpet.stores.core.status import DONE, INSERT, PUT, UPDATE
from limpet.stores.dict import MISSING, is_hashable, viewed

if TYPE_CHECKING:
    from limpet.stores.cache.store import CacheStore

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

PATIENCE_S: Final = 60
EARLY_MOST: Final = 100.0
TOKEN_OF_NOTHING: Final = -1


def tags_word(tags: Iterable[str]) -> int:
    """The word of an entry with these tags. ParameterError: they are no list of texts, or more than
    five."""
    return tags_of_numbers(map(tag_number, listed(tags)))


def listed(tags: Iterable[str]) -> Iterable[str]:
    """Tags as they were given. ParameterError: a text, the letters of which would be the tags."""
    if isinstance(tags, str):
        raise ParameterError(f"tags must be a list of texts, such as [{tags!r}], not {tags!r}")
    return tags


def tags_of_numbers(found: Iterable[int]) -> int:
    """The word of an entry whose tags have these numbers; ParameterError, as `tags_word`."""
    numbers = sorted(set(found))
    if len(numbers) > TAGS_EACH or any(not 0 < number < TAGS_MAX for number in numbers):
        raise ParameterError(f"an entry of a cache has at most {TAGS_EACH} tags")
    word = 0
    for number in numbers:
        word = word << TAG_BITS | number
    return word


def tag_numbers(word: int) -> list[int]:
    """The numbers of the tags of an entry with this word."""
    found = (word >> shift & TAGS_MAX - 1 for shift in range(0, TAGS_EACH * TAG_BITS, TAG_BITS))
    return [number for number in found if number]


def _begins(key: object, prefix: str | bytes) -> bool:
    """Whether a key is of the prefix's type, and begins with it."""
    if isinstance(prefix, str):
        return isinstance(key, str) and key.startswith(prefix)
    return isinstance(key, bytes) and key.startswith(prefix)


def _check_token(token: int) -> None:
    check_whole("token", token, TOKEN_OF_NOTHING, (1 << 64) - 1)


def tag_number(tag: str) -> int:
    """The number of a tag, from 1 on; two tags may have the same. ParameterError: it is no text."""
    if not isinstance(tag, str):
        raise ParameterError(f"a tag must be a text, not {tag!r}")
    return 1 + int(hash64(tag.encode())) % (TAGS_MAX - 1)


class Cache(MutableMapping[K, V]):
    """A cache that lives in a pool. Iteration is as weakly consistent as that of a `race` store."""

    def __init__(self, store: CacheStore, codec: Codec) -> None:
        self.store = store
        self.codec = codec
        if codec.name == "bytes":
            # The store takes such keys and gives such values itself: a third of the time.
            self.get = store.get  # type: ignore[method-assign]
        self.flights = Flights(store, codec.decode)

    # ---- one key ----------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        data = self.store.get(self.codec.encode_key(key))
        if data is None:
            raise KeyError(key)
        value: V = self.codec.decode(data)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.store.put(self.codec.encode_key(key), self.codec.encode(value))

    def __delitem__(self, key: K) -> None:
        try:
            self.store.delete(self.codec.encode_key(key))
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        """Whether a key is there. False for one that cannot be; TypeError if it is not hashable."""
        try:
            return self.codec.encode_key(key) in self.store
        except (TypeError, ValueError, OverflowError, KeyTooLarge):
            if not is_hashable(key):
                raise
            return False

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: object = None) -> object:
        """The value, or `default`; a hit or a miss is counted."""
        data = self.store.get(self.codec.encode_key(key))
        return default if data is None else self.codec.decode(data)

    def view(self, key: K, default: object = None) -> Any:
        """The value without a copy, over the shared memory, or `default`; a hit or a miss is
        counted. As `SharedDict.view`, which says more: it stays also when the entry expires or is
        evicted. What is held so is not in the cache's bounds."""
        return viewed(self.store, self.codec, key, default)

    def set(
        self,
        key: K,
        value: V,
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
    ) -> None:
        """Set a value. ValueTooLarge: it is larger than the whole cache.

        `ttl`: seconds that it lives; 0: until it is evicted; by default that of the cache. `slide`:
        each read lets it live for `ttl` again, of at most 49 days. `stale`: seconds after that, in
        which `get_or_compute` may still serve it while one process computes another. `tags`: at
        most five, for `invalidate`.
        """
        self._write(key, value, PUT, self.terms(ttl, slide, stale, tags))

    def add(
        self,
        key: K,
        value: V,
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
    ) -> bool:
        """`set`, if the key is not there; whether it was not."""
        return self._write(key, value, INSERT, self.terms(ttl, slide, stale, tags)) == DONE

    def replace(
        self,
        key: K,
        value: V,
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
    ) -> bool:
        """`set`, if the key is there; whether it was."""
        return self._write(key, value, UPDATE, self.terms(ttl, slide, stale, tags)) == DONE

    def _write(self, key: K, value: V, mode: int, terms: Terms) -> int:
        encode_key, encode = self.codec.encode_key, self.codec.encode
        return self.store.write(encode_key(key), encode(value), mode, terms)

    def terms(
        self,
        ttl: Seconds | None,
        slide: bool,
        stale: Seconds,
        tags: Iterable[str],
        birth: int = -1,
    ) -> Terms:
        """The terms of a write. Raises ParameterError."""
        if ttl is None and not (slide or stale or tags) and birth < 0:
            return self.store.usual
        most = TTL_MAX_MS if slide else LIFE_MAX_MS
        lives = self.store.parameters.ttl_ms
        if ttl is not None or lives > most:
            lives = units_of("ttl", lives / MS if ttl is None else ttl, MS, most)
        late = units_of("stale", stale, MS, TTL_MAX_MS)
        if slide and not lives:
            raise ParameterError("an entry slides by its ttl; give it one")
        return Terms(lives, lives if slide else 0, late, tags_word(tags), birth)

    def touch(self, key: K, ttl: Seconds | None = None, *, slide: bool = False) -> bool:
        """Let an entry live for `ttl` seconds from now; whether there was one.

        `ttl`: by default that of the cache, which must have one then; 0: until it is evicted.
        """
        if ttl is None and not self.store.parameters.ttl_ms:
            raise ParameterError(
                f"{self.store.name}: the cache has no ttl, so give touch one; with 0 the entry "
                "lives until it is evicted"
            )
        return self.store.touch(self.codec.encode_key(key), self.terms(ttl, slide, 0, ()))

    def expires_in(self, key: K) -> float | None:
        """How many seconds an entry has left; None: it has no deadline. KeyError: it is not
        there."""
        found = self.store.entry(self.codec.encode_key(key))
        if found is None:
            raise KeyError(key)
        deadline = found[2]
        left = deadline - self.store.endpoint.microseconds()
        return max(0, left) / US if deadline else None

    def delete(self, key: K, token: int | None = None) -> bool:
        """Delete an entry; whether there was one. `token`: only if it is as `gets` found it."""
        if token == TOKEN_OF_NOTHING:
            return False
        if token is not None:
            _check_token(token)
            return self.store.delete_as(self.codec.encode_key(key), token)
        try:
            self.store.delete(self.codec.encode_key(key))
        except KeyError:
            return False
        return True

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: object = MISSING) -> object:
        """As for a dict, and atomic: of several processes, one gets the value."""
        data = self.store.take(self.codec.encode_key(key))
        if data is not None:
            return self.codec.decode(data)
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Take out some entry; KeyError when there is none. Only one process gets an entry."""
        for name in self.store:
            # An entry that does not count may be a lock, or in computation: it stays.
            data = self.store.take(name) if name in self.store else None
            if data is not None:
                return self.codec.decode_key(name), self.codec.decode(data)
        raise KeyError("popitem(): the cache is empty")

    @overload
    def setdefault(self: Cache[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """As for a dict, and atomic: of several processes, one sets the value that all get."""
        name, data = self.codec.encode_key(key), self.codec.encode(default)
        while True:
            found = self.store.get(name)
            if found is not None:
                return self.codec.decode(found)
            if self.store.write(name, data, INSERT, self.store.usual) == DONE:
                return self.codec.decode(data)

    # ---- compare and set --------------------------------------------------------------------

    def gets(self, key: K) -> tuple[V | None, int]:
        """The value and a token for `cas`; (None, a token of nothing) if there is none."""
        found = self.store.entry(self.codec.encode_key(key))
        if found is None:
            return None, TOKEN_OF_NOTHING
        return self.codec.decode(found[0]), found[1]

    def cas(self, key: K, value: V, token: int, *, ttl: Seconds | None = None) -> bool:
        """Set a value if the entry is as `gets` found it; whether it was.

        Its deadline stays, unless a `ttl` is given. Its tags and its `stale` stay, and an entry
        that slides goes on to slide.

        The token stands for the bytes of the entry: an entry that was changed and changed back
        matches it. With the token of nothing this is `add`.
        """
        _check_token(token)
        terms = self.terms(ttl, False, 0, ())
        if token == TOKEN_OF_NOTHING:
            return self._write(key, value, INSERT, terms) == DONE
        if ttl is None:
            return self._write(key, value, SWAP, Terms(checksum=token, keep=True)) == DONE
        return self._write(key, value, SWAP, Terms(terms.span, checksum=token, renew=True)) == DONE

    def incr(
        self, key: K, delta: int = 1, *, initial: int | None = None, ttl: Seconds | None = None
    ) -> int:
        """Add to a whole number; the sum. Its deadline stays.

        `initial`: the number to start from if the key is not there, with this `ttl`; without it,
        KeyError. Raises TypeError when the value, or a number that is given, is no whole number.
        """
        delta = operator.index(delta)
        initial = None if initial is None else operator.index(initial)
        name = self.codec.encode_key(key)
        while True:
            found = self.store.entry(name)
            if found is None:
                if initial is None:
                    raise KeyError(key)
                value = initial + delta
                terms, mode = self.terms(ttl, False, 0, ()), INSERT
            else:
                number: object = self.codec.decode(found[0])
                if not isinstance(number, int):
                    raise TypeError(f"{key!r} is no whole number but {type(number).__name__}")
                value = number + delta
                terms, mode = Terms(checksum=found[1], keep=True), SWAP
            if self.store.write(name, self.codec.encode(value), mode, terms) == DONE:
                return value

    def decr(
        self, key: K, delta: int = 1, *, initial: int | None = None, ttl: Seconds | None = None
    ) -> int:
        """`incr` by less."""
        return self.incr(key, -delta, initial=initial, ttl=ttl)

    # ---- many keys --------------------------------------------------------------------------

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that are there."""
        wanted = list(keys)
        found = self.store.get_many([self.codec.encode_key(key) for key in wanted])
        return {
            key: self.codec.decode(data)
            for key, data in zip(wanted, found, strict=True)
            if data is not None
        }

    def set_many(
        self,
        pairs: Mapping[K, V],
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
    ) -> None:
        """`set` each of them; not atomic as a whole."""
        terms = self.terms(ttl, slide, stale, tags)
        for key, value in pairs.items():
            self._write(key, value, PUT, terms)

    def delete_many(self, keys: Iterable[K]) -> int:
        """Delete those keys that are there; how many there were."""
        return sum(self.delete(key) for key in keys)

    # ---- the whole cache --------------------------------------------------------------------

    def __iter__(self) -> Iterator[K]:
        for name in self.store:
            if name in self.store:
                yield self.codec.decode_key(name)

    def __len__(self) -> int:
        """How many entries count now; looks at all of them. `stats()["items"]` looks at none."""
        return sum(name in self.store for name in self.store)

    def __bool__(self) -> bool:
        return any(name in self.store for name in self.store)

    def clear(self) -> None:
        """Invalidate all entries that are there now. Takes one write; see `expire`."""
        self.store.invalidate(0)

    def invalidate(self, *tags: str) -> None:
        """Invalidate all entries with one of these tags whose value was begun before now."""
        for tag in tags:
            self.store.invalidate(tag_number(tag))

    def delete_prefix(self, prefix: str | bytes) -> int:
        """Delete all entries whose key is text, or bytes, that begins so; how many there were. A
        value that is being computed for such a key is not kept.

        Walks over all keys. An entry that is set meanwhile may stay. Tags are for what is often
        invalidated.
        """
        return sum(
            self.store.take(name) is not None
            for name in self.store
            if not name.startswith(PREFIX) and _begins(self.codec.decode_key(name), prefix)
        )

    def expire(self) -> int:
        """Free the memory of all entries that do not count any more; how many there were.

        No other operation depends on it: an entry that does not count is never served, and a full
        cache evicts it first.
        """
        return sum(self.store.purge(name) for name in self.store)

    def stats(self, own: bool = False) -> dict[str, int | float]:
        """Counts since the cache was made, of all processes, living and dead; and its size.

        `hits` and `misses`: requests that the cache answered, and did not, by `get`, `[]`,
        `get_many`, `setdefault`, `get_or_compute` and `memoize`; a caller that waits for another
        one's value, or gets a stale one, is a hit, and one that computes a miss. `sets`: values
        that were stored. `deletes`: entries that a program deleted. `evictions`: those that went
        for want of room. `expirations`: those that did not count any more, as their time was over
        or a tag was invalidated, when they were removed. `computations`: by `get_or_compute`, to
        the end. `evicted_age_s`: how long entries were there, on average, when they were evicted.
        `items` and `bytes` include entries that do not count any more, and have not been freed.
        `own`: only the counts of this process's client slot, which another process may have had
        before. Locks of keys are in no count but `items` and `bytes`.
        """
        counts = self.store.own_counts() if own else self.store.counts()
        items, size = self.store.sizes()
        max_items, max_bytes = self.store.limits()
        evicted_ms = counts.pop("evicted_ms")
        return {
            **counts,
            "evicted_age_s": evicted_ms / MS / max(1, counts["evictions"]),
            "items": items,
            "bytes": size,
            "max_items": max_items,
            "max_bytes": max_bytes,
        }

    def resize(self, *, max_bytes: int | str | None = None, max_items: int | None = None) -> None:
        """Give the cache other bounds, while all processes use it; units as of `Pool.cache`.

        A bound that grows does so at once. One that shrinks does so in steps, which evict 16
        entries, or 64 KiB and an entry, each; the call returns when the cache is within it. If the
        process is killed in between, the writes of others go on with it, a step each. Of several
        resizes at a time the last one holds. One that is not given stays; items, if they were as
        many as fit, go with the bytes. ParameterError: that is more than the pool's memory, or than
        the table has room for, 16 times the items that the cache was made for.
        """
        if max_bytes is None and max_items is None:
            raise ParameterError("resize() takes max_bytes, or max_items, or both")
        self.store.resize(max_items, max_bytes)

    # ---- computing --------------------------------------------------------------------------

    def get_or_compute(
        self,
        key: K,
        compute: Callable[[], V],
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
        none_ttl: Seconds | None = None,
        patience: Seconds = PATIENCE_S,
        early: float = 0.0,
    ) -> V:
        """The value. If it is not there, one caller of all processes computes it, while the others
        wait. When the process that computes is killed, another one takes over at once.

        `stale`: for so many seconds after the deadline the other callers get the old value and do
        not wait. `none_ttl`: how long a value of None is kept; 0: not at all. `patience`: after so
        many seconds a waiting caller computes for itself. An exception of `compute` goes to its
        caller, and another caller computes then. `early`: one caller computes the next value before
        the deadline, at a random time that is on average `early` times as long before it as the
        value took to compute; the others get the value that is there. 1.0 is a good choice, and an
        entry that slides is not computed early. If the key was set, deleted or invalidated while
        its value was computed, or the value is larger than the whole cache, it is returned but not
        kept. A value whose class this program lacks is a miss. A `compute` that asks for its own
        key would wait for itself: ReentrantUse. In a child that is forked in `compute`, a value
        that is returned is not kept.
        """
        call = self._computation(key, patience)
        try:
            seat = self.flights.board(call, self._beta(early))
            if not seat.mine:
                return seat.value
            terms = self._terms_of(seat, ttl, slide, stale, tags, none_ttl)
            began = call.begin()
            value = compute()
            self._land(call, value, terms, none_ttl, began)
        except BaseException:
            call.abandon()
            raise
        return value

    async def get_or_compute_async(
        self,
        key: K,
        compute: Callable[[], Awaitable[V]],
        *,
        ttl: Seconds | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
        none_ttl: Seconds | None = None,
        patience: Seconds = PATIENCE_S,
        early: float = 0.0,
    ) -> V:
        """`get_or_compute` for a coroutine function: waits without blocking the event loop."""
        call = self._computation(key, patience)
        try:
            seat = await self.flights.board_async(call, self._beta(early))
            if not seat.mine:
                return seat.value
            terms = self._terms_of(seat, ttl, slide, stale, tags, none_ttl)
            began = call.begin()
            value = await compute()
            self._land(call, value, terms, none_ttl, began)
        except BaseException:
            call.abandon()
            raise
        return value

    def _computation(self, key: K, patience: Seconds) -> Computation:
        waits_ms = units_of("patience", patience, MS, LIFE_MAX_MS)
        return Computation(self.store, self.codec.encode_key(key), key, waits_ms)

    @staticmethod
    def _beta(early: float) -> float:
        if not 0 <= early <= EARLY_MOST:
            raise ParameterError(f"early must be from 0 to {EARLY_MOST:g}, not {early}")
        return early

    def _terms_of(
        self,
        seat: Seat,
        ttl: Seconds | None,
        slide: bool,
        stale: Seconds,
        tags: Iterable[str],
        none_ttl: Seconds | None,
    ) -> Terms:
        """The terms of the value that is computed next. Raises ParameterError."""
        terms = self.terms(ttl, slide, stale, tags, seat.birth)
        if none_ttl is not None:
            units_of("none_ttl", none_ttl, MS, LIFE_MAX_MS)
        terms.flight = seat.flight
        return terms

    def _land(
        self, call: Computation, value: V, terms: Terms, none_ttl: Seconds | None, began: float
    ) -> None:
        """Store the computed value, if it is to be kept, and not too large."""
        call.end()
        terms.took = min(math.ceil(1000 * (time.monotonic() - began)), TTL_MAX_MS)
        if value is None and none_ttl is not None:
            kept_ms = units_of("none_ttl", none_ttl, MS, LIFE_MAX_MS)
            if kept_ms == 0:
                call.abandon()
                return
            terms = Terms(
                kept_ms, tags=terms.tags, birth=terms.birth, took=terms.took, flight=terms.flight
            )
        if terms.flight:
            try:
                self.store.finish_flight(call.key, self.codec.encode(value), terms)
            except ValueTooLarge:
                call.abandon()

    def lock(self, key: K, ttl: Seconds = PATIENCE_S) -> CacheLock:
        """A lock that goes with a key, for threads of all processes: to compute what is not set by
        `get_or_compute`. A dead process loses it at once, and a living one after `ttl`
        seconds."""
        ttl_ms = units_of("ttl", ttl, MS, LIFE_MAX_MS, 1)
        return CacheLock(self.store, self.codec.encode_key(key), ttl_ms)

    def memoize(
        self,
        *,
        ttl: Seconds | None = None,
        key: Callable[..., K] | None = None,
        slide: bool = False,
        stale: Seconds = 0,
        tags: Iterable[str] = (),
        none_ttl: Seconds | None = None,
        early: float = 0.0,
    ) -> Callable[[F], F]:
        """Decorate a function, or a coroutine function: `get_or_compute` by its arguments.

        `key`: makes a key of the arguments; by default the key is the function's name and the
        arguments, which must then be valid in a key, as the `self` of most methods is not. The
        function gets an attribute `forget(*arguments)`.
        """
        how = {
            "ttl": ttl,
            "slide": slide,
            "stale": stale,
            "tags": tuple(listed(tags)),
            "early": early,
        }
        uses = Computes(
            self.codec.base,
            self.codec.encode_key,
            self.get_or_compute,
            self.get_or_compute_async,
            self.delete,
        )
        return memoized(uses, key, {**how, "none_ttl": none_ttl})

    # ---- other ------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant in memory; StoreCorrupt names the one that does not hold."""
        self.store.check()

    def __repr__(self) -> str:
        state = ""
        with contextlib.suppress(LimpetError):  # as within an operation
            state = ": {} items, {} bytes".format(*self.store.sizes())
        return f"<cache {self.store.name!r} of {self.store.pool.url}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self.store.pool, self.store.kind, self.store.name)


def _attached(pool: Any, kind: str, name: str) -> Cache[Any, Any]:
    store, codec = pool.attached(kind, name)
    return Cache(store, Codec.named(codec))
