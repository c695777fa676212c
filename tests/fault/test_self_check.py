import pytest

from limpet.fault.check.self_check import (
    LOADED,
    TRAILER_SIZE,
    Original,
    describe,
    identify,
    identity,
    reseal,
    seal,
    unseal,
)

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")

CONTENT = bytes(range(256)) * 3
ORIGINAL = Original.of(CONTENT)


def test_stamp_says_who_wrote_a_value() -> None:
    assert identify(CONTENT, ORIGINAL, 4) == LOADED
    first = reseal(CONTENT, ORIGINAL, 4, 7, 1)
    assert len(first) == len(CONTENT) + TRAILER_SIZE
    assert identify(first, ORIGINAL, 4) == identity(7, 1)
    second = reseal(first, ORIGINAL, 4, 8, 2)
    assert len(second) == len(first)
    assert identify(second, ORIGINAL, 4) == identity(8, 2)


def test_stamp_of_an_empty_file_works() -> None:
    empty = Original.of(b"")
    assert identify(b"", empty, 0) == LOADED
    assert identify(reseal(b"", empty, 0, 1, 1), empty, 0) == identity(1, 1)


def test_identify_refuses_every_torn_value() -> None:
    """Any prefix of one write over another, at 8-byte words, as a kill or a race may leave it."""
    old, new = reseal(CONTENT, ORIGINAL, 4, 1, 1), reseal(CONTENT, ORIGINAL, 4, 2, 9)
    for cut in range(len(CONTENT) // 8 * 8 + 16, len(old), 8):
        torn = new[:cut] + old[cut:]
        assert identify(torn, ORIGINAL, 4) is None
    for cut in range(8, len(CONTENT), 8):
        assert identify(bytes(cut) + new[cut:], ORIGINAL, 4) is None


@pytest.mark.parametrize("at", [0, 100, 767, *range(768, 808)])
def test_identify_refuses_every_flipped_byte(at: int) -> None:
    value = bytearray(reseal(CONTENT, ORIGINAL, 4, 7, 1))
    value[at] ^= 1
    assert identify(bytes(value), ORIGINAL, 4) is None


def test_identify_refuses_other_lengths_and_keys() -> None:
    value = reseal(CONTENT, ORIGINAL, 4, 7, 1)
    assert identify(value, ORIGINAL, 5) is None
    assert identify(value[:-1], ORIGINAL, 4) is None
    assert identify(value + b"x", ORIGINAL, 4) is None
    assert identify(CONTENT[:-1], ORIGINAL, 4) is None
    assert identify(b"", ORIGINAL, 4) is None
    assert identify(value, Original.of(CONTENT[::-1]), 4) is None


def test_describe_names_writes() -> None:
    assert describe(LOADED) == "the load"
    assert describe(identity(3, 17)) == "write 17 of incarnation 3"
    with pytest.raises(OverflowError):
        identity(0, 1)


def test_seal_makes_a_value_of_any_content_that_names_its_writer_and_key() -> None:
    sealed = seal(CONTENT, 4, 7, 9)
    assert sealed[:-TRAILER_SIZE] == CONTENT
    assert unseal(sealed, 4) == identity(7, 9)
    assert unseal(seal(b"", 4, 1, 1), 4) == identity(1, 1)
    assert unseal(sealed, 5) is None
    assert unseal(CONTENT, 4) is None
    assert unseal(b"short", 4) is None
    assert unseal(sealed + b"x", 4) is None


def test_unseal_refuses_every_torn_value() -> None:
    """Also of contents and lengths that differ, cut at any 8-byte word."""
    old, new = seal(CONTENT, 4, 1, 1), seal(CONTENT[::-1], 4, 2, 9)
    for cut in range(8, len(old), 8):
        assert unseal(new[:cut] + old[cut:], 4) is None
        assert unseal(old[:cut], 4) is None
