"""Results, errors and accounting of every verb, on the native and on the portable fabric."""

import inspect
import itertools
import mmap
import random
import struct
import threading
import time
from array import array

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.fabrics import BOTH, NATIVE, SIZE, address, endpoint_on

from limpet.shm.endpoint import portable
from limpet.shm.endpoint.states import FORMER
from limpet.shm.errors import AddressError, NodeFailed, ReentrantUse

TOP = 1 << 63
MAX = (1 << 64) - 1
ZERO = dict.fromkeys(
    (
        "round_trips", "reads", "writes", "atomics", "cas", "cas_lost", "bytes_read",
        "bytes_written", "lines_flushed", "fences", "exchanges",
    ),
    0,
)  # fmt: skip
HOSTILE = (AddressError, NodeFailed, OverflowError, ValueError)


@pytest.fixture(params=BOTH)
def fabric(request):
    return request.param


@pytest.fixture
def endpoint(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as made:
        yield made


def words(*values):
    return memoryview(bytearray(struct.pack(f"{len(values)}Q", *values))).cast("Q")


@pytest.mark.parametrize("at", [0, 8, SIZE - 8])
@pytest.mark.parametrize("word", [0, MAX, 64, 1 << 40, (1 << 48) - 16])
def test_hints_bear_any_address_and_count_nothing(fabric, endpoint, at, word):
    endpoint.store(address(0, at), word)
    endpoint.reset_counters()
    odd = (address(0, at) + 1, address(0, SIZE - 4), address(0, SIZE), address(1), MAX)
    for addr in (address(0, at), *odd):
        endpoint.prefetch(addr, MAX)
        endpoint.prefetch_target(addr, 0, 1024)
        endpoint.prefetch_target(addr, MAX, MAX)
    assert endpoint.counters() == endpoint.counters("background") == ZERO
    assert endpoint.load(address(0, at)) == word


# ---- the two fabrics have one face --------------------------------------------------------------


@pytest.mark.skipif(NATIVE is None, reason="a pure build has no native fabric")
def test_fabrics_have_the_same_methods_and_signatures():
    def face(thing):
        return {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}

    native, pure = face(NATIVE.Endpoint), face(portable.Endpoint)
    # the words where it counts, which only compiled code sees of the native one
    assert native.keys() == pure.keys() - {"figures"}
    for name, method in native.items():
        if callable(method):
            # the words are C structures here, so only names, order and defaults can agree
            ours = inspect.signature(pure[name]).parameters.values()
            theirs = inspect.signature(method).parameters.values()
            assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]
    for name in (
        "buffer_cas", "buffer_load", "buffer_store", "checksum", "checksum_buffer", "crc_pair",
        "fits_word", "flush_features", "hash64",
        "keys_below", "lowest_bit", "words_bytes", "words_compare", "words_equal", "words_move",
        "words_prefetch", "words_put", "words_tagged",
    ):  # fmt: skip
        assert list(inspect.signature(getattr(NATIVE, name)).parameters) == list(
            inspect.signature(getattr(portable, name)).parameters
        )


def test_endpoint_subclass_from_python_overrides_verbs(fabric):
    class Doubled(fabric.Endpoint):
        def __init__(self, name):
            self.name = name

        def load(self, addr):
            return 2 * super().load(addr)

        def cas(self, addr, expected, desired):
            return (self.name, super().cas(addr, expected, desired))

    endpoint = Doubled("mine")
    with mmap.mmap(-1, SIZE) as mapping:
        endpoint.attach(0, mapping, SIZE)
        endpoint.store(8, 21)
        assert endpoint.load(8) == 42
        assert endpoint.cas(8, 21, 1) == ("mine", 21)
        assert fabric.Endpoint.load(endpoint, 8) == 1
        endpoint.detach()


def test_words_of_a_mapping_without_an_endpoint(fabric):
    with mmap.mmap(-1, SIZE) as mapping:
        fabric.buffer_store(mapping, SIZE - 8, MAX)
        assert fabric.buffer_cas(mapping, SIZE - 8, TOP, 1) == MAX
        assert fabric.buffer_cas(mapping, SIZE - 8, MAX, TOP) == MAX
        assert fabric.buffer_load(memoryview(mapping), SIZE - 8) == TOP
        assert not any(mapping[:-8])
        for offset in (-8, 4, SIZE - 4, SIZE):
            with pytest.raises(AddressError):
                fabric.buffer_store(mapping, offset, 1)
        with pytest.raises(OverflowError):
            fabric.buffer_cas(mapping, 0, 0, MAX + 1)
    for read_only in (bytes(16), memoryview(bytes(16))):
        with pytest.raises((AddressError, BufferError)):
            fabric.buffer_store(read_only, 0, 1)


# ---- helpers on words ---------------------------------------------------------------------------


def test_hash64_equals_xxhash_at_every_length(fabric):
    rng = random.Random(1)
    data = rng.randbytes(301)
    for size in range(301):
        seed = rng.choice((0, 1, MAX, rng.getrandbits(64)))
        assert fabric.hash64(data[:size], seed) == xxhash.xxh64_intdigest(data[:size], seed)
    assert fabric.hash64(b"") == 0xEF46DB3751D8E999
    with pytest.raises(OverflowError):
        fabric.hash64(b"", MAX + 1)


def test_checksum_is_xxh64_or_for_long_data_xxh3(fabric):
    rng = random.Random(2)
    data = rng.randbytes(70_000)
    for size in (0, 1, 1023, *range(1024, 1024 + 130), 2047, 2048, 2049, 65_535, 65_536, 70_000):
        seed = rng.choice((0, 1, MAX, rng.getrandbits(64)))
        expected = xxhash.xxh3_64_intdigest if size >= 1024 else xxhash.xxh64_intdigest
        assert fabric.checksum(data[:size], seed) == expected(data[:size], seed)
        assert fabric.checksum_buffer(bytearray(data[:size]), seed) == expected(data[:size], seed)


@pytest.mark.parametrize("data", [None, "text", bytearray(8), memoryview(b"12345678")])
def test_hash64_takes_bytes_and_nothing_else(fabric, data):
    with pytest.raises(TypeError):
        fabric.hash64(data)
    with pytest.raises(TypeError):
        fabric.checksum(data)


def test_lowest_bit_finds_the_lowest(fabric):
    for bit in range(64):
        assert fabric.lowest_bit(1 << bit) == bit
        assert fabric.lowest_bit(TOP | 1 << bit) == bit


def test_a_number_fits_a_word_if_it_is_an_int_of_64_bits_with_a_sign(fabric):
    for number in (0, -1, 5, 2**63 - 1, -(2**63)):
        assert fabric.fits_word(number) is True
    for other in (2**63, -(2**63) - 1, 10**40, True, 1.0, "1", None):
        assert fabric.fits_word(other) is False


@pytest.mark.parametrize("make", [words, lambda *values: array("Q", values)])
def test_words_as_bytes(fabric, make):
    buffer = make(*struct.unpack("3Q", b"0123456789abcdefghijklmn"))
    assert fabric.words_bytes(buffer, 3, 10) == b"3456789abc"
    assert fabric.words_bytes(buffer, 24, 0) == b""
    assert fabric.words_equal(buffer, 3, b"3456789abc")
    assert fabric.words_equal(buffer, 24, b"")
    assert not fabric.words_equal(buffer, 3, b"345678x")
    assert not fabric.words_equal(buffer, 17, b"hijklmno")
    assert not fabric.words_equal(buffer, -1, b"")
    assert not fabric.words_equal(buffer, TOP - 1, b"0123456789")
    for offset, size in ((-1, 1), (0, -1), (0, 25), (24, 1), (TOP - 1, 8), (8, TOP - 1)):
        with pytest.raises(AddressError):
            fabric.words_bytes(buffer, offset, size)
    with pytest.raises(ValueError, match=r"."):
        fabric.words_bytes(bytearray(24), 0, 1)


def test_words_put_fills_up_with_zeros(fabric):
    buffer = words(MAX, MAX, MAX)
    assert fabric.words_put(buffer, 3, b"12345678", 11) == 0
    assert buffer.tobytes() == b"\xff" * 3 + b"12345678" + bytes(3) + b"\xff" * 10
    fabric.words_put(buffer, 24, b"", 0)
    for offset, data, size in (
        (-1, b"", 1),
        (0, b"ab", 1),
        (17, b"", 8),
        (0, b"", 25),
        (0, b"", -1),
    ):
        with pytest.raises(AddressError):
            fabric.words_put(buffer, offset, data, size)
    with pytest.raises((TypeError, AddressError)):
        fabric.words_put(buffer, 0, None, 8)


def test_words_compare_sorts_as_bytes_do(fabric):
    samples = [b"", b"\0", b"a", b"a\0", b"ab", b"b", b"\x7f", b"\x80", b"\xff" * 8, b"\xff" * 9]
    for one in samples:
        buffer = words(0, 0, 0)
        fabric.words_put(buffer, 5, one, len(one))
        for other in samples:
            found = fabric.words_compare(buffer, 5, len(one), other)
            assert found == (one > other) - (one < other), (one, other)
    for offset, size in ((-1, 1), (0, -1), (0, 25), (24, 1), (TOP - 1, 8), (8, TOP - 1)):
        with pytest.raises(AddressError):
            fabric.words_compare(words(0, 0, 0), offset, size, b"")


def test_words_tagged_are_those_with_the_tag(fabric):
    rng = random.Random(1)
    for count in (0, 1, 2, 7, 32, 63, 64):
        for start in (0, 1, 3):
            values = [rng.choice((0, 1, 0x7F, 0xFF)) << 56 | rng.getrandbits(56) for _ in range(67)]
            for tag in (0, 1, 0x7F, 0xFF, 2):
                expected = sum(
                    1 << index
                    for index, value in enumerate(values[start : start + count])
                    if value >> 56 == tag
                )
                assert fabric.words_tagged(words(*values), start, count, tag) == expected
    for start, count in ((-1, 1), (0, -1), (0, 4), (3, 1), (TOP - 1, 2), (1, TOP - 1)):
        with pytest.raises(AddressError):
            fabric.words_tagged(words(1, 2, 3), start, count, 0)
    with pytest.raises(AddressError):
        fabric.words_tagged(words(*range(70)), 0, 65, 0)


def test_hints_take_whatever_there_is(fabric, endpoint):
    """They raise nothing, count nothing, and are no steps of the fuse."""
    rng = random.Random(1)
    endpoint.write(0, bytes(rng.randrange(256) for _ in range(SIZE)))
    for at, place in enumerate((SIZE - 8, SIZE, 1 << 40, 5 << 40, 255 << 40, TOP >> 8)):
        endpoint.store(8 * at, 7 << 56 | place)
    endpoint.fuse = 1
    before = endpoint.counters(), endpoint.counters("background")
    odd = (SIZE, SIZE - 8, 1, 63, 1 << 40, 5 << 40 | 64, 255 << 40, 1 << 48, TOP - 1, TOP - 7)
    for place in (0, 64, *odd):
        endpoint.prefetch(place, 4096)
        endpoint.prefetch(place, TOP - 1, True)
    for index in (0, 2, 3, -1, 1 << 62, -(1 << 62)):
        fabric.words_prefetch(words(1, 2, 3), index)
    assert (endpoint.counters(), endpoint.counters("background")) == before
    endpoint.fuse = 0


def test_there_are_hints_only_where_verbs_are_not_overridden(fabric, endpoint):
    class Doubled(fabric.Endpoint):
        def load(self, addr):
            return 2 * super().load(addr)

    assert endpoint.hints == (fabric is NATIVE)
    assert not Doubled().hints


def test_keys_are_counted_below_a_key_and_up_to_it(fabric):
    keys = [b"", b"a", b"a\0", b"ab", b"b", b"c" * 20]
    for count in range(len(keys) + 1):
        for key in [*keys, b"\0", b"aa", b"bb", b"c" * 19, b"c" * 21]:
            some = keys[:count]
            assert fabric.keys_below(some, key, False) == sum(each < key for each in some)
            assert fabric.keys_below(some, key, True) == sum(each <= key for each in some)


def test_words_move_bears_overlaps(fabric):
    for target, start, size in ((0, 3, 10), (3, 0, 10), (5, 5, 8), (24, 0, 0), (14, 0, 10)):
        buffer, expected = words(1, 2, 3), bytearray(range(24))
        fabric.words_put(buffer, 0, bytes(range(24)), 24)
        expected[target : target + size] = bytes(expected[start : start + size])
        assert fabric.words_move(buffer, target, start, size) == 0
        assert buffer.tobytes() == bytes(expected)
    for target, start, size in (
        (-1, 0, 1),
        (0, -1, 1),
        (0, 0, -1),
        (0, 17, 8),
        (17, 0, 8),
        (0, 0, 25),
    ):
        with pytest.raises(AddressError):
            fabric.words_move(words(0, 0, 0), target, start, size)


def _crc32c(crc, word):
    """A bit at a time, from the definition."""
    for octet in word.to_bytes(8, "little"):
        crc ^= octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 105])
def test_crc_pair_is_that_of_its_definition(fabric, count, hardware):
    rng = random.Random(count)
    some = [rng.getrandbits(64) for _ in range(count + 3)]
    found = fabric.crc_pair(words(*some), 2, count, hardware)
    for factor, crc in ((1, found & 0xFFFFFFFF), (0x9E3779B185EBCA87, found >> 32)):
        sides = [0, 0]
        for index, word in enumerate(some[2 : count + 2]):
            sides[index % 2] = _crc32c(sides[index % 2], word * factor & MAX)
        assert crc == _crc32c(sides[0], sides[1] << 8)
    assert fabric.crc_pair(words(*[0] * (count + 1)), 0, count) == 0


def test_crc32c_of_a_known_text(fabric):
    """The step is that of RFC 3720: the CRC of "123456789" is 0xE3069283."""
    crc = _crc32c(0xFFFFFFFF, int.from_bytes(b"12345678", "little")) ^ ord("9")
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc ^ 0xFFFFFFFF == 0xE3069283


def test_crc_pair_changes_with_every_bit(fabric):
    rng = random.Random(2)
    some = [rng.getrandbits(64) for _ in range(7)]
    before = fabric.crc_pair(words(*some), 0, 7)
    for bit in range(7 * 64):
        other = list(some)
        other[bit // 64] ^= 1 << bit % 64
        after = fabric.crc_pair(words(*other), 0, 7)
        assert after & 0xFFFFFFFF != before & 0xFFFFFFFF
        assert after >> 32 != before >> 32


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_crc_pair_changes_with_words_that_repeat(fabric, count):
    """Equal changes of several words do not cancel out."""
    rng = random.Random(count)
    values = [0, MAX, *(rng.getrandbits(64) for _ in range(6))]
    for one, other in itertools.permutations(values, 2):
        before = fabric.crc_pair(words(*[one] * count), 0, count)
        for first, second in itertools.combinations(range(count), 2):
            changed = [one] * count
            changed[first] = changed[second] = other
            after = fabric.crc_pair(words(*changed), 0, count)
            assert after & 0xFFFFFFFF != before & 0xFFFFFFFF
            assert after >> 32 != before >> 32


def test_crc_pair_refuses_what_is_outside_of_the_buffer(fabric):
    for start, count in ((-1, 1), (0, -1), (0, 4), (3, 1), (TOP - 1, 1)):
        with pytest.raises(AddressError):
            fabric.crc_pair(words(1, 2, 3), start, count)


# ---- results ------------------------------------------------------------------------------------


def test_word_verbs_return_what_was_there(endpoint):
    at = 64
    assert endpoint.load(at) == 0
    assert endpoint.store(at, MAX) == 0
    assert endpoint.load(at) == MAX
    assert endpoint.swap(at, 5) == MAX
    assert endpoint.cas(at, 5, TOP) == 5
    assert endpoint.cas(at, 5, 6) == TOP
    assert endpoint.fetch_or(at, 3) == TOP
    assert endpoint.faa(at, 10) == TOP | 3
    assert endpoint.load(at) == TOP + 13
    assert endpoint.mcas(at, 13, 0xFF00, 0xFF, 0xFF00) == TOP + 13
    assert endpoint.load(at) == TOP + 0xFF0D
    assert endpoint.mcas(at, 14, 0, 0xFF, MAX) == TOP + 0xFF0D
    assert endpoint.load(at) == TOP + 0xFF0D
    assert endpoint.read(at - 8, 24) == struct.pack("3Q", 0, TOP + 0xFF0D, 0)


def test_faa_wraps_around(endpoint):
    endpoint.store(0, MAX)
    assert endpoint.faa(0, 1) == MAX
    assert endpoint.faa(0, MAX) == 0
    assert endpoint.load(0) == MAX
    endpoint.store(8, TOP)
    assert endpoint.faa(8, TOP) == TOP
    assert endpoint.read(0, 24) == struct.pack("3Q", MAX, 0, 0)


def test_words_are_little_endian_and_share_bytes(endpoint):
    endpoint.write(8, b"\x01\x02\x03\x04\x05\x06\x07\xf8")
    assert endpoint.load(8) == 0xF807060504030201


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 64, 511, 512, 513, 1000, 4096])
@pytest.mark.parametrize("offset", [0, 8, 3, 61])
def test_reads_return_what_was_written_and_nothing_around_it(endpoint, size, offset):
    data = random.Random(size).randbytes(size)
    background = b"\xee" * SIZE
    endpoint.write(0, background)
    endpoint.write(offset, data)
    expected = background[:offset] + data + background[offset + size :]
    assert endpoint.read(0, SIZE) == expected
    assert endpoint.read(offset, size) == data
    buffer = bytearray(b"\xaa" * size)
    assert endpoint.read_into(offset, buffer) == 0
    assert buffer == data
    count = size // 8
    if count:
        target = words(*[7] * (count + 1))
        assert endpoint.read_words(offset, target, count) == 0
        assert target.tobytes() == data[: 8 * count] + struct.pack("Q", 7)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array("B", data)])
def test_write_takes_any_bytes_like(endpoint, kind):
    endpoint.write(16, kind(b"nine byte"))
    assert endpoint.read(16, 10) == b"nine byte\0"


def test_write_refuses_buffers_with_gaps(endpoint):
    with pytest.raises(BufferError):
        endpoint.write(0, memoryview(bytes(64))[::2])
    with pytest.raises(BufferError):
        endpoint.read_into(0, bytes(8))
    assert endpoint.counters() == ZERO


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 24, 27, 600])
@pytest.mark.parametrize("second", [0, 1, 8, 13, 700])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_write_gather_is_one_write_of_the_concatenation(endpoint, first, second, count):
    rng = random.Random(first)
    head = [rng.getrandbits(64) for _ in range(3)]
    one, two = rng.randbytes(first), rng.randbytes(second)
    image = struct.pack(f"{count}Q", *head[:count]) + one + bytes(-first % 8) + two
    endpoint.write(0, b"\xee" * SIZE)
    endpoint.reset_counters()
    assert endpoint.write_gather(64, words(*head), count, one, two) == 0
    assert endpoint.counters() == ZERO | {"writes": 1, "bytes_written": len(image)}
    rest = SIZE - 64 - len(image)
    assert endpoint.read(0, SIZE) == b"\xee" * 64 + image + b"\xee" * rest


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 2), (0, 90), (2, 88)])
def test_write_words_is_one_write_of_them(endpoint, start, count):
    some = [random.Random(start).getrandbits(64) for _ in range(90)]
    image = struct.pack(f"{count}Q", *some[start : start + count])
    endpoint.write(0, b"\xee" * SIZE)
    endpoint.reset_counters()
    assert endpoint.write_words(64, words(*some), count, start) == 0
    assert endpoint.counters() == ZERO | {"writes": 1, "bytes_written": len(image)}
    rest = SIZE - 64 - len(image)
    assert endpoint.read(0, SIZE) == b"\xee" * 64 + image + b"\xee" * rest


def test_nodes_do_not_overlap(fabric):
    maps = [mmap.mmap(-1, SIZE) for _ in range(3)]
    endpoint = fabric.Endpoint()
    for node, mapping in zip((0, 1, 255), maps, strict=True):
        endpoint.attach(node, mapping, SIZE)
    for node in (0, 1, 255):
        endpoint.store(address(node, 8), node + 1)
    assert [struct.unpack_from("Q", mapping, 8)[0] for mapping in maps] == [1, 2, 256]
    endpoint.detach()
    for mapping in maps:
        mapping.close()


U64 = st.integers(0, MAX) | st.integers(0, 15) | st.sampled_from([TOP, MAX, MAX - 1, 1 << 32])


@pytest.mark.parametrize("fabric", BOTH)
@settings(deadline=None, max_examples=150)
@given(word=U64, compare=U64, swap=U64, compare_mask=U64, swap_mask=U64, same=st.booleans())
def test_mcas_follows_its_model(fabric, word, compare, swap, compare_mask, swap_mask, same):
    if same:
        compare = compare & ~compare_mask & MAX | word & compare_mask
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        endpoint.store(8, word)
        assert endpoint.mcas(8, compare, swap, compare_mask, swap_mask) == word
        won = word & compare_mask == compare & compare_mask
        assert endpoint.load(8) == (word & ~swap_mask | swap & swap_mask if won else word)
        assert endpoint.counters()["cas_lost"] == (not won)


OFFSET = st.integers(0, 31).map(lambda index: index * 8)
STEP = st.one_of(
    st.tuples(st.sampled_from(["store", "swap", "faa", "fetch_or"]), OFFSET, U64),
    st.tuples(st.just("load"), OFFSET),
    st.tuples(st.just("cas"), OFFSET, U64, U64),
    st.tuples(st.just("mcas"), OFFSET, U64, U64, U64, U64),
    st.tuples(st.just("write"), st.integers(0, 160), st.binary(max_size=96)),
    st.tuples(st.just("read"), st.integers(0, 160), st.integers(0, 96)),
    st.tuples(st.just("wait")),
    st.tuples(st.just("background"), st.booleans()),
    st.tuples(
        st.just("write_gather"), OFFSET, st.lists(U64, max_size=4).map(lambda x: words(*x, 0)),
        st.integers(0, 5), st.binary(max_size=40), st.binary(max_size=40),
    ),
    st.tuples(
        st.just("write_words"), OFFSET, st.lists(U64, max_size=4).map(lambda x: words(*x, 0)),
        st.integers(-1, 5), st.integers(-1, 3),
    ),
)  # fmt: skip


@pytest.mark.skipif(NATIVE is None, reason="a pure build has no native fabric")
@settings(deadline=None, max_examples=100)
@given(steps=st.lists(STEP, max_size=25), node=st.sampled_from([0, 7, 255]))
def test_fabrics_agree_on_any_sequence_of_verbs(steps, node):
    """Same results, same errors, same memory, same counts."""

    def run(fabric):
        with endpoint_on(fabric, mmap.mmap(-1, SIZE), node, 256) as endpoint:
            results = []
            for name, *arguments in steps:
                if arguments and name != "background":
                    arguments[0] |= node << 40
                try:
                    results.append(getattr(endpoint, name)(*arguments))
                except AddressError:
                    results.append(AddressError)
            counts = endpoint.counters(), endpoint.counters("background")
            return results, endpoint.read(node << 40, 256), counts

    assert run(NATIVE) == run(portable)


# ---- errors -------------------------------------------------------------------------------------

ANY_INT = (
    st.integers(-(1 << 66), 1 << 66)
    | st.integers(-20, SIZE + 20)
    | st.integers(-20, 20).map(lambda n: (1 << 64) + n)
    | st.integers(-20, 20).map(lambda n: TOP + n)
    | st.integers(-20, 20).map(lambda n: (1 << 61) + n)
    | st.integers(-20, 20).map(lambda n: (1 << 40) + n)
)


def refuse_alike(addr, size):
    """Hostile arguments are errors, and both fabrics name the same one."""
    buffer = words(*range(8))
    calls = {
        "read": (size,), "read_into": (bytearray(24),), "read_words": (buffer, size),
        "write": (b"x" * 24,), "write_gather": (buffer, size, b"x" * 16, b"y"), "load": (),
        "write_words": (buffer, size), "store": (1,), "swap": (1,), "cas": (0, 1), "faa": (1,),
        "fetch_or": (1,), "mcas": (0, 1, 1, 1), "futex_wait": (1, 0), "futex_wake": (1,),
        "watch_states": (),
    }  # fmt: skip

    def outcomes(fabric):
        found = {}
        with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
            for name, arguments in calls.items():
                try:
                    found[name] = getattr(endpoint, name)(addr, *arguments)
                except HOSTILE as error:
                    found[name] = type(error)
        for name in ("words_bytes", "words_equal"):
            last = size if name == "words_bytes" else b"123"
            try:
                found[name] = getattr(fabric, name)(buffer, addr, last)
            except HOSTILE as error:
                found[name] = type(error)
        return found

    expected = outcomes(portable)
    if not 0 <= addr < SIZE:
        results = {name: expected[name] for name in calls}
        assert all(result in HOSTILE for result in results.values()), results
    if NATIVE is not None:
        assert outcomes(NATIVE) == expected


@settings(deadline=None, max_examples=300)
@given(addr=ANY_INT, size=ANY_INT)
def test_hostile_addresses_and_sizes_are_errors(addr, size):
    refuse_alike(addr, size)


EDGES = [0, 8, SIZE - 8, SIZE, 1 << 40, 255 << 40, 1 << 48, 1 << 61, FORMER, FORMER | 255 << 40]
EDGES += [1 << 63, 1 << 64, 1 << 66]


@pytest.mark.parametrize("off", [-8, -1, 0, 1])
@pytest.mark.parametrize("edge", EDGES, ids=hex)
def test_addresses_and_sizes_at_their_limits_are_errors(edge, off):
    for size in (-1 << 63, -1, 0, 1, 8, 9, 1 << 32, 1 << 61, (1 << 63) - 1, 1 << 63, 1 << 64):
        refuse_alike(edge + off, size)


@pytest.mark.parametrize("size", [0, 8])
@pytest.mark.parametrize("addr", [SIZE, address(1), address(255), address(256), MAX & ~7])
def test_addresses_on_no_node_are_refused(endpoint, addr, size):
    with pytest.raises(AddressError, match=f"{addr:#x}"):
        endpoint.read(addr, size)
    with pytest.raises(AddressError, match=f"{addr:#x}"):
        endpoint.write(addr, bytes(size))
    with pytest.raises(AddressError, match=f"{addr:#x}"):
        endpoint.faa(addr, 1)
    assert endpoint.counters() == ZERO


def test_accesses_across_the_end_are_refused_whole(endpoint):
    with pytest.raises(AddressError):
        endpoint.write(SIZE - 8, b"x" * 9)
    with pytest.raises(AddressError):
        endpoint.write_gather(SIZE - 16, words(1, 2), 2, b"x", b"")
    with pytest.raises(AddressError):
        endpoint.write_words(SIZE - 8, words(1, 2), 2)
    with pytest.raises(AddressError):
        endpoint.read_words(SIZE - 8, words(1, 2), 2)
    assert endpoint.read(0, SIZE) == bytes(SIZE)


@pytest.mark.parametrize("offset", [1, 4, 7])
def test_misaligned_words_are_refused(endpoint, offset):
    for name, *values in (
        ("load",), ("store", 1), ("swap", 1), ("cas", 0, 1), ("faa", 1), ("fetch_or", 1),
        ("mcas", 0, 1, 1, 1), ("futex_wait", 0, 0), ("futex_wake", 1),
    ):  # fmt: skip
        with pytest.raises(AddressError, match="not aligned"):
            getattr(endpoint, name)(offset, *values)
    with pytest.raises(AddressError):
        endpoint.write_gather(offset, words(1), 1, b"", b"")
    with pytest.raises(AddressError):
        endpoint.write_words(offset, words(1), 1)
    assert endpoint.read(0, 16) == bytes(16)


@pytest.mark.parametrize("value", [-1, MAX + 1])
def test_values_that_are_no_words_are_refused(endpoint, value):
    for name, *values in (
        ("store", value), ("swap", value), ("cas", value, 1), ("cas", 0, value), ("faa", value),
        ("fetch_or", value), ("mcas", 0, value, 0, MAX), ("mcas", 0, 1, value, MAX),
    ):  # fmt: skip
        with pytest.raises(OverflowError):
            getattr(endpoint, name)(0, *values)
    with pytest.raises(TypeError):
        endpoint.store(0, "1")
    with pytest.raises(TypeError):
        endpoint.write_gather(0, words(1), 1, None, b"")
    with pytest.raises(TypeError):
        endpoint.write(0, 5)
    assert endpoint.read(0, 8) == bytes(8)
    assert endpoint.counters() == ZERO | {"reads": 1, "bytes_read": 8, "exchanges": 1}


def test_attach_refuses_what_cannot_be_a_node(fabric, endpoint):
    with mmap.mmap(-1, SIZE) as spare:
        for node in (-1, 0, 256):
            with pytest.raises(AddressError):
                endpoint.attach(node, spare, SIZE)
        for size in (SIZE + 1, 0, -1):
            with pytest.raises(AddressError):
                endpoint.attach(1, spare, size)
        with pytest.raises(AddressError), memoryview(spare) as view, view[8:] as odd:
            endpoint.attach(1, odd, SIZE - 8)
        with pytest.raises(BufferError):
            endpoint.attach(1, bytes(SIZE), SIZE)
        with pytest.raises(TypeError):
            endpoint.attach(1, None, SIZE)
        endpoint.attach(1, spare, SIZE // 2)
        with pytest.raises(AddressError):
            endpoint.load(address(1, SIZE // 2))
        endpoint.detach()


def test_detached_mappings_can_be_closed_and_not_before(fabric):
    mapping = mmap.mmap(-1, SIZE)
    endpoint = fabric.Endpoint()
    endpoint.attach(0, mapping, SIZE)
    endpoint.faa(0, 1)
    with pytest.raises(BufferError):
        mapping.close()
    endpoint.detach()
    endpoint.detach()
    mapping.close()
    with pytest.raises(AddressError):
        endpoint.load(0)
    with mmap.mmap(-1, SIZE) as other:
        endpoint.attach(0, other, SIZE)
        assert endpoint.load(0) == 0
        endpoint.detach()


def test_an_endpoint_that_is_dropped_lets_go_of_its_mapping(fabric):
    mapping = mmap.mmap(-1, SIZE)
    endpoint = fabric.Endpoint()
    endpoint.attach(0, mapping, SIZE)
    endpoint.faa(0, 1)
    del endpoint
    mapping.close()


# ---- accounting ---------------------------------------------------------------------------------


def test_counters_are_exact(endpoint):
    endpoint.read(0, 10)
    endpoint.read_into(0, bytearray(20))
    endpoint.read_words(0, words(0, 0), 2)
    endpoint.load(0)
    endpoint.write(0, bytes(5))
    endpoint.store(0, 1)
    endpoint.swap(0, 2)
    endpoint.faa(0, 1)
    endpoint.fetch_or(0, 4)
    endpoint.cas(0, 7, 8)
    endpoint.cas(0, 7, 8)
    endpoint.mcas(0, 8, 9, MAX, MAX)
    endpoint.mcas(0, 8, 9, MAX, MAX)
    endpoint.wait()
    endpoint.wait()
    assert endpoint.counters() == ZERO | {
        "round_trips": 2, "reads": 4, "writes": 2, "atomics": 3, "cas": 4, "cas_lost": 2,
        "bytes_read": 10 + 20 + 16 + 8, "bytes_written": 5 + 8, "exchanges": 2 + 4 + 3 + 4,
    }  # fmt: skip
    assert endpoint.counters("background") == ZERO


def test_lanes_are_counted_apart(fabric, endpoint):
    endpoint.load(0)
    assert endpoint.background(True) is False
    endpoint.load(0)
    endpoint.wait()
    assert endpoint.background(True) is True
    assert endpoint.background(False) is True
    endpoint.wait()
    assert endpoint.counters() == ZERO | {
        "reads": 1, "bytes_read": 8, "round_trips": 1, "exchanges": 2,
    }  # fmt: skip
    assert endpoint.counters("background") == endpoint.counters()
    with pytest.raises(ValueError, match=r"."):
        endpoint.counters("sideways")
    endpoint.background(True)
    endpoint.reset_counters()
    endpoint.load(0)
    assert endpoint.counters() == ZERO
    assert endpoint.counters("background")["reads"] == 1


def test_the_control_segment_counts_apart(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE), node=255) as endpoint:
        endpoint.store(address(255), 1)
        endpoint.cas(address(255), 0, 1)
        assert endpoint.counters() == endpoint.counters("background") == ZERO
        assert endpoint.counters("control") == ZERO | {
            "writes": 1, "bytes_written": 8, "cas": 1, "cas_lost": 1, "exchanges": 1,
        }  # fmt: skip


@pytest.mark.parametrize("outside", [False, True])
def test_end_restores_the_accounting_scope_of_begin(endpoint, outside):
    """An exception in the midst of an operation's background work does not leave it there."""
    endpoint.background(outside)
    assert not endpoint.begin()
    endpoint.background(not outside)
    endpoint.end()
    endpoint.store(address(0), 1)
    scopes = ("foreground", "background")
    assert [endpoint.counters(scope)["writes"] for scope in scopes] == [not outside, outside]


def test_wait_takes_the_latency_of_a_round_trip_in_the_foreground(endpoint):
    def takes_ns():
        start = time.perf_counter_ns()
        endpoint.wait()
        return time.perf_counter_ns() - start

    endpoint.latency_ns = 20_000_000
    assert takes_ns() >= 20_000_000
    endpoint.background(True)
    assert any(takes_ns() < 20_000_000 for _ in range(1000))


# ---- one operation at a time --------------------------------------------------------------------


def test_begin_refuses_reentrant_use(endpoint):
    assert endpoint.begin() is False
    with pytest.raises(ReentrantUse):
        endpoint.begin()
    endpoint.end()
    assert endpoint.begin() is False
    endpoint.end()
    endpoint.end()
    assert endpoint.begin() is False
    endpoint.end()


def test_threads_exclude_each_other_across_a_pause(endpoint):
    rounds = 40

    def work():
        for _ in range(rounds):
            assert endpoint.begin() is False
            try:
                before = endpoint.load(0)
                endpoint.pause(25)
                endpoint.store(0, before + 1)
            finally:
                endpoint.end()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert endpoint.load(0) == 3 * rounds


def test_pause_is_short_and_lets_other_threads_run(endpoint):
    start = time.monotonic()
    for attempt in (0, 7, 8, 23, 24, 73, 74, MAX):
        assert endpoint.pause(attempt) == 0
    assert time.monotonic() - start < 60
    with pytest.raises(OverflowError):
        endpoint.pause(-1)
    thread = threading.Thread(target=endpoint.store, args=(0, 1))
    thread.start()
    attempt = 0
    while endpoint.load(0) == 0:
        endpoint.pause(attempt)
        attempt += 1
    thread.join()
