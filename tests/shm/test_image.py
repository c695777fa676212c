"""Images: what is read in place, what is copied, and what becomes of either when memory is lost."""

import mmap
import os
from bisect import bisect_left

import pytest
from kit.fabrics import BOTH, NATIVE, SIZE, address, endpoint_on, file_mapping

from limpet.shm.endpoint import portable
from limpet.shm.errors import AddressError, NodeFailed

needs_native = pytest.mark.skipif(NATIVE is None, reason="a pure build has no native fabric")
TEXT = b"abcdefghijklmnopqrstuvwx"


@pytest.fixture(params=BOTH)
def fabric(request):
    return request.param


@pytest.mark.parametrize("in_place", [False, True])
def test_an_image_says_what_was_read(fabric, in_place):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        endpoint.write(64, TEXT)
        endpoint.reset_counters()
        image = endpoint.image(64, in_place)
        image.read(64, 3)
        counted = endpoint.counters()
        endpoint.reset_counters()
        endpoint.read_words(64, memoryview(bytearray(64)).cast("Q"), 3)
        assert endpoint.counters() == counted
        assert [image.word(index) for index in range(3)] == [
            int.from_bytes(TEXT[at : at + 8], "little") for at in (0, 8, 16)
        ]
        assert image.cut(3, 7) == TEXT[3:10]
        assert image.cut(24, 0) == b""
        assert image.equal(1, b"bcd")
        assert not image.equal(1, b"bce")
        assert not image.equal(60, b"qrstu")
        assert [image.compare(1, 3, data) for data in (b"bcd", b"bce", b"bc", b"bcda", b"")] == [
            0, -1, 1, -1, 1,
        ]  # fmt: skip
        image.own()
        image.words[0] = 7
        assert (image.word(0), image.cut(8, 8)) == (7, TEXT[8:16])
        assert endpoint.read(64, 24) == TEXT
        for ask in (lambda: image.word(8), lambda: image.cut(-1, 2), lambda: image.cut(60, 5)):
            with pytest.raises(AddressError):
                ask()


@pytest.mark.parametrize("in_place", [False, True])
def test_an_image_is_read_and_its_key_compared(fabric, in_place):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        for length in (0, 1, 7, 8, 24, 40, 47):
            key = bytes(range(1, length + 1))
            endpoint.write(64, (length | 3 << 16).to_bytes(8, "little") + bytes(8) + key)
            image = endpoint.image(64, in_place)
            for asked in (key, key[:-1] + b"z", key + b"z", key[:-1]):
                endpoint.reset_counters()
                assert image.read_keyed(64, 8, 16, asked) == (asked == key)
                found = endpoint.counters(), image.head, image.word(0), image.cut(16, length)
                endpoint.reset_counters()
                image.read(64, 8)
                assert found == (endpoint.counters(), image.head, image.word(0), key)
        endpoint.store(64, 60)
        assert not image.read_keyed(64, 8, 16, bytes(60))
        for at, count in ((0, 9), (0, 0), (SIZE - 8, 2), (address(3), 1)):
            with pytest.raises(AddressError):
                image.read_keyed(at, count, 16, b"key")


def slotted(endpoint, pairs, flags=0):
    """An image of the pairs, each named by a word as `search` and `pairs` take them."""
    image = endpoint.image(1024, True)
    raw = memoryview(image.words).cast("B")
    at = 1024
    for index, (key, value) in enumerate(pairs):
        at -= len(key) + len(value)
        raw[at : at + len(key) + len(value)] = key + value
        image.words[1 + index] = at | len(key) << 16 | len(value) << 32
    image.words[len(pairs)] |= flags << 48 if pairs else 0
    endpoint.write(0, bytes(raw))
    image.read(0, 128)
    return image


def test_an_image_is_searched_for_pieces(fabric):
    keys = [b"", b"a", b"aa", b"ab", b"b", b"ba", b"c" * 20]
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        for count in range(len(keys) + 1):
            image = slotted(endpoint, [(key, b"") for key in keys[:count]])
            for key in [*keys, b"\0", b"aaa", b"z", b"c" * 19, b"c" * 21]:
                place = bisect_left(keys, key, 0, count)
                exact = key in keys[:count]
                assert image.search(1, count, key) == (place if exact else ~place)
                for index in range(count):
                    named = image.word(1 + index) if keys[index] == key else 0
                    assert image.named(1 + index, key) == named
        image.words[2] = 1020 | 5 << 16
        endpoint.write(0, bytes(image.words))
        for ask in (lambda: image.search(1, 2, b"z"), lambda: image.named(2, b"12345")):
            with pytest.raises(AddressError):
                ask()
        assert image.named(2, b"1234") == 0


def test_an_image_gives_pairs_up_to_one_with_a_flag(fabric):
    pairs = [(b"a", b"1"), (b"bb", b""), (b"", b"333"), (b"d", b"4")]
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        for flags, whole in ((0, 4), (1, 3), (1 << 15, 3)):
            found = [(b"0", b"0")]
            assert slotted(endpoint, pairs, flags).pairs(1, 4, found) == whole
            assert found[1:] == pairs[:whole]
        assert slotted(endpoint, pairs).pairs(2, 1, found) == 1
        assert found[-1] == pairs[1]


def test_pieces_are_copied_inserted_and_removed(fabric):
    """The copy of some pieces is changed as a list of them is."""
    pairs = [(b"a", b"1"), (b"bb", b""), (b"", b""), (b"d", b"4" * 9)]
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        source = slotted(endpoint, pairs)
        image = endpoint.image(256)
        heap = source.copy_pieces(2, 3, image.words, 1, 250)
        kept = pairs[1:]
        assert heap == 250 - sum(len(key) + len(value) for key, value in kept)
        for index, key, value in ((0, b"A", b""), (4, b"e" * 20, b"5"), (2, b"", b"x")):
            heap = image.insert_pieces(1, len(kept), index, heap, key, value, 0)
            kept.insert(index, (key, value))
            found = []
            assert image.pairs(1, len(kept), found) == len(kept)
            assert found == kept
        while kept:
            index = len(kept) // 2
            heap = image.remove_pieces(1, len(kept), index, heap)
            del kept[index]
            found = []
            assert image.pairs(1, len(kept), found) == len(kept)
            assert found == kept
        assert heap == 250
        assert source.copy_pieces(1, 4, image.words, 1, 40) == 0
        heap = image.insert_pieces(1, 0, 0, 250, b"key", (1 << 63 | 7).to_bytes(8, "little"), 0)
        assert image.number(heap + 3) == 1 << 63 | 7
        for refused in (
            lambda: image.insert_pieces(1, 1, 2, heap, b"", b"", 0),
            lambda: image.insert_pieces(1, 1, 0, heap, b"", b"x" * 230, 0),
            lambda: image.remove_pieces(1, 1, 1, heap),
            lambda: image.number(249),
        ):
            with pytest.raises(AddressError):
                refused()


def test_an_image_refuses_what_does_not_fit_it(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        for size in (0, 12, -8):
            with pytest.raises(AddressError):
                endpoint.image(size)
        for at, count in ((0, 9), (0, 0), (0, -1), (SIZE - 8, 2), (address(3), 1)):
            with pytest.raises(AddressError):
                endpoint.image(64, True).read(at, count)


@needs_native
def test_memory_is_seen_in_place_only_where_that_was_asked_for():
    with endpoint_on(NATIVE, mmap.mmap(-1, SIZE)) as endpoint:
        for in_place, seen in ((False, 1), (True, 2)):
            endpoint.store(64, 1)
            image = endpoint.image(64, in_place)
            image.read(64, 8)
            endpoint.store(64, 2)
            assert image.word(0) == seen
            image.own()
            endpoint.store(64, 3)
            assert image.word(0) == seen


@needs_native
def test_an_endpoint_with_verbs_of_its_own_copies():
    class Watched(NATIVE.Endpoint):
        def read_words(self, addr, words, count, start=0):
            self.seen = (addr, count)
            return super().read_words(addr, words, count, start)

    endpoint, mapping = Watched(), mmap.mmap(-1, SIZE)
    endpoint.attach(0, mapping, SIZE)
    image = endpoint.image(64, True)
    image.read(64, 2)
    endpoint.store(64, 1)
    assert (endpoint.seen, image.word(0)) == ((64, 2), 0)
    endpoint.detach()
    assert image.word(0) == 0
    mapping.close()


@needs_native
@pytest.mark.skipif(
    NATIVE is not None and "clflushopt" not in NATIVE.flush_features(),
    reason="this CPU cannot flush cache lines",
)
def test_memory_without_hardware_coherence_is_copied():
    endpoint, mapping = NATIVE.Endpoint(), mmap.mmap(-1, SIZE)
    endpoint.attach(0, mapping, SIZE, 4096)
    for at, seen in ((64, 2), (4096, 1), (4088, 1)):
        endpoint.write(at, (1).to_bytes(8, "little") * 2)
        image = endpoint.image(64, True)
        image.read(at, 2)
        endpoint.write(at, (2).to_bytes(8, "little"))
        assert image.word(0) == seen, at
    endpoint.detach()
    mapping.close()


def asked_of(image):
    return (
        lambda: image.word(0),
        lambda: image.cut(0, 16),
        lambda: image.equal(0, b"abc"),
        lambda: image.compare(0, 3, b"abc"),
        lambda: image.search(0, 1, b"abc"),
        lambda: image.named(0, b"abc"),
        lambda: image.pairs(0, 1, []),
        image.own,
    )


@needs_native
@pytest.mark.parametrize("which", range(8))
def test_what_is_lost_while_it_is_looked_at_is_never_made_up(which):
    with (
        file_mapping() as (descriptor, mapping),
        endpoint_on(NATIVE, mapping) as endpoint,
    ):
        endpoint.write(4096, TEXT)
        image, copy = endpoint.image(64, True), endpoint.image(64)
        image.read(4096, 3)
        copy.read(4096, 3)
        os.truncate(descriptor, 4096)
        for _ in range(2):
            with pytest.raises(NodeFailed):
                asked_of(image)[which]()
        assert copy.cut(0, 24) == TEXT
        image.forget()
        image.words[0] = 5
        assert image.word(0) == 5


@needs_native
def test_a_node_that_was_marked_as_failed_or_let_go_of_is_not_looked_at():
    with endpoint_on(NATIVE, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as other:
        endpoint.watch_states(0)
        endpoint.attach(1, other, SIZE)
        image = endpoint.image(64, True)
        image.read(address(1), 8)
        endpoint.store(8, 1)
        for ask in asked_of(image):
            with pytest.raises(NodeFailed):
                ask()
        endpoint.store(8, 0)
        assert image.word(0) == 0
        endpoint.release(1)
        for ask in asked_of(image):
            with pytest.raises(AddressError):
                ask()


@needs_native
def test_images_of_both_fabrics_have_one_face():
    def face(thing):
        return {name for name in dir(thing) if not name.startswith("_")}

    endpoint = portable.Endpoint()
    assert face(NATIVE.Image) == face(portable.Image(endpoint, 8))
