"""Errors name the pool, the store or the key that they are about, and say what to do."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import limpet
from limpet.shm.backends.file import FilePlace
from limpet.shm.parameters import parse_size
from limpet.stores.core.codecs import Codec


def test_a_closed_handle_names_its_pool(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    counter = pool.counter("c")
    pool.close()
    for use in (lambda: store.put(b"k", b"v"), lambda: store.get(b"k"), pool.stores, counter.add):
        with pytest.raises(limpet.PoolClosed, match=f"{pool.url}: this handle was closed; open"):
            use()


@pytest.mark.parametrize("cut", [False, True])
def test_a_lost_node_says_how_it_is_replaced(pools: Any, cut: bool) -> None:
    pool = pools(nodes=1)
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")
    if cut:
        os.truncate(f"/dev/shm/limpet.{pool.url.removeprefix('shm://')}.0", 0)
    else:
        pool.mark_failed(0)
    with pytest.raises(limpet.NodeFailed, match="`limpet replace-node`") as raised:
        store.get(b"k")
    assert ("limpet fail-node" in str(raised.value)) == cut
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.node) == (str(raised.value), 0)


def test_the_control_segment_is_no_memory_node() -> None:
    assert str(limpet.NodeFailed(255, "gone")) == "the control segment has failed: gone"
    assert str(limpet.NodeFailed(3)) == "memory node 3 has failed"


@pytest.mark.parametrize("kind", ["race", "rcuckoo", "raw"])
def test_a_key_or_value_that_is_too_long_is_named(pools: Any, kind: str) -> None:
    store = pools().store(kind, capacity=64, **({"room": 64} if kind == "raw" else {}))
    with pytest.raises(limpet.KeyTooLarge, match=r"the key b'long{21}'\.\.\. has 65539 bytes"):
        store.put(b"lo" + b"n" + b"g" * 65_536, b"v")
    with pytest.raises(limpet.ValueTooLarge, match="b'short'"):
        store.put(b"short", bytes(100 << 20))


def test_an_entry_that_a_cache_cannot_take_is_named(pools: Any) -> None:
    cache = pools().cache("c", codec="bytes", max_bytes=4096)
    with pytest.raises(limpet.ValueTooLarge, match=r"c: the entry of b'name' takes"):
        cache[b"name"] = bytes(8000)


@pytest.mark.parametrize("name", ["int", "json", "json+zlib", "msgpack+zlib", "pickle+zlib"])
def test_a_key_that_a_codec_does_not_take_names_the_codec(name: str) -> None:
    with pytest.raises(TypeError, match=f"codec '{name}' takes keys of type".replace("+", r"\+")):
        Codec.named(name).encode_key([])


def test_codecs_with_compression_write_the_keys_of_those_without() -> None:
    for key in ("a", 1, 1.5, True, np.int64(3), frozenset({1, 2}), (1, "b")):
        whole = Codec.named("pickle+zlib").encode_key(key)
        assert whole == Codec.named("pickle").encode_key(key)


def test_a_dropped_cache_says_how_it_is_made_anew(pools: Any) -> None:
    pool = pools()
    cache = pool.cache("c")
    pool.drop("c")
    with pytest.raises(limpet.StoreDropped, match=r"pool\.cache\(\) makes a new one"):
        cache["k"] = 1


@pytest.mark.parametrize(
    ("size", "why"),
    [("5", "4096 up to 1 TiB, not 5$"), ("100TiB", f"up to 1 TiB, not {100 << 40}$")],
)
def test_a_size_that_cannot_be_is_named_as_it_was_given(
    make_url: Callable[[], str], size: str, why: str
) -> None:
    with pytest.raises(limpet.ParameterError, match=why):
        limpet.create(make_url(), node_size=size)


def test_sizes_may_be_in_tebibytes() -> None:
    assert [parse_size(text) for text in ("1TiB", "2 TB", "0.5tib")] == [
        1 << 40,
        2 * 10**12,
        1 << 39,
    ]


def test_a_folder_that_cannot_be_made_is_no_missing_pool() -> None:
    with pytest.raises(limpet.ParameterError, match="file:///proc/x: no folder can be made there"):
        limpet.create("file:///proc/x", node_size="1MiB")


def test_a_pool_that_cannot_be_removed_says_so(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FilePlace, fd: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    url = make_url()
    limpet.create(url, node_size="1MiB").close()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(FilePlace, "remove", refuse)
            with pytest.raises(limpet.PoolPermission, match="may not be removed by this user"):
                limpet.destroy(url)
    finally:
        limpet.destroy(url)


def test_a_missing_pool_is_named_with_what_makes_one(tmp_path: Path) -> None:
    for url in (f"shm://nothing-{os.getpid()}", f"file://{tmp_path}/nothing"):
        with pytest.raises(limpet.PoolNotFound) as raised:
            limpet.open(url)
        said = str(raised.value)
        assert said.startswith(f"{url}: there is no such pool")
        assert "`limpet ls`" in said
        assert "limpet.create" in said


def test_a_segment_that_is_not_of_limpet_is_to_be_removed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    for name in ("control", "node.0"):
        other = tmp_path / "pool" / name
        other.write_bytes(b"of another program" * 1000)
        with pytest.raises(limpet.PoolExists, match="remove it yourself, or take another name"):
            limpet.create(f"file://{tmp_path}/pool")
        assert other.read_bytes().startswith(b"of another program")
        other.unlink()


def test_parameters_of_a_pool_are_all_listed() -> None:
    with pytest.raises(limpet.ParameterError, match="no parameter size; it has") as raised:
        limpet.create("never-made", size="1GiB")  # type: ignore[call-arg]
    words = str(raised.value).rpartition("it has ")[2].split(", ")
    taken = set(inspect.signature(limpet.create).parameters) - {"url", "parameters"}
    assert set(words) >= taken | {"clients", "durable", "node_size", "mode"}


def test_key_types_are_all_listed() -> None:
    for codec, more in (("json", {"bool"}), ("pickle", {"bool", "Enum", "frozenset", "UUID"})):
        with pytest.raises(TypeError, match="takes keys of type") as raised:
            Codec.named(codec).encode_key([])
        words = str(raised.value).partition("of type ")[2].partition(" or None")[0].split(", ")
        assert set(words) >= more | {"str", "int"}
        assert ("UUID" in words) == (codec == "pickle")


def test_objects_of_another_number_say_only_that(pools: Any) -> None:
    pool = pools()
    pool.objects("idx", 65)
    with pytest.raises(limpet.StoreMismatch, match="'idx' are 65, not 66; their name") as raised:
        pool.objects("idx", 66)
    assert "None" not in str(raised.value)


def test_a_channel_of_another_form_is_described_in_words(pools: Any) -> None:
    pool = pools()
    pool.queue("q", maxsize=16)
    other = pools.again(pool)
    with pytest.raises(
        limpet.StoreMismatch, match=r"is there as a queue with .*maxsize 16"
    ) as found:
        other.queue("q", maxsize=17)
    assert "maxsize 17" in str(found.value)
    with pytest.raises(
        limpet.StoreMismatch,
        match=r"'q' is a queue, not a lock; open it with pool.queue\('q'\), or",
    ) as kind:
        other.lock("q")
    assert "{" not in str(found.value) + str(kind.value)


def test_a_mapping_in_a_transaction_says_what_to_use(pools: Any) -> None:
    pool = pools()
    mapping = pool.dict("d", store="rtx-race")
    for use in (
        lambda tx: tx.put(mapping, "k", 5),
        lambda tx: tx.put(mapping, b"k", 5),
        lambda tx: tx.get(mapping, "k"),
        lambda tx: tx.delete(mapping, "k"),
    ):
        with pytest.raises(limpet.ParameterError, match="SharedDict takes part in no") as raised:
            pool.transaction(use)
        assert "d.store" in str(raised.value)
    key, value = mapping.codec.encode_key("k"), mapping.codec.encode(5)
    pool.transaction(lambda tx: tx.put(mapping.store, key, value))
    assert mapping["k"] == 5
    with pytest.raises(TypeError, match="a key is bytes"):
        pool.transaction(lambda tx: tx.put(mapping.store, "k", b"v"))
