"""Parts of the portable fabric alone: words in use, files behind mappings."""

import mmap
import os
import sys
import threading

import pytest
from kit.fabrics import SIZE, endpoint_on, file_mapping

from limpet.shm.endpoint import portable, portable_node
from limpet.shm.endpoint.portable_turns import TURNS, Turns
from limpet.shm.errors import NodeFailed


def test_a_word_in_use_keeps_the_mapping():
    """Another thread, in the middle of a verb, must not lose the word that it works on."""
    mapping = mmap.mmap(-1, SIZE)
    endpoint = portable.Endpoint()
    endpoint.attach(0, mapping, SIZE)
    _, word = endpoint._word(8)
    endpoint.detach()
    with pytest.raises(BufferError):
        mapping.close()
    word.store(7)
    assert mapping[8] == word.load() == 7
    del word
    mapping.close()


def test_a_kept_failure_does_not_keep_the_mapping_open():
    with file_mapping() as (descriptor, mapping), endpoint_on(portable, mapping) as endpoint:
        endpoint.faa(0, 1)
        os.truncate(descriptor, 0)
        with pytest.raises(NodeFailed) as kept:
            endpoint.faa(0, 1)
    assert kept.value.node == 0
    assert mapping.closed


def test_a_loss_is_for_good():
    with file_mapping() as (descriptor, mapping), endpoint_on(portable, mapping) as endpoint:
        os.truncate(descriptor, SIZE - 1)
        with pytest.raises(NodeFailed):
            endpoint.load(0)
        os.truncate(descriptor, SIZE)
        with pytest.raises(NodeFailed):
            endpoint.load(0)


def test_a_file_that_is_too_short_when_attached_fails():
    with file_mapping() as (descriptor, mapping):
        os.truncate(descriptor, 4096)
        with endpoint_on(portable, mapping) as endpoint, pytest.raises(NodeFailed):
            endpoint.load(0)


class Untracked(mmap.mmap):
    """Stands in for a map made with `trackfd=False`, which exists from Python 3.13 on."""

    def size(self):
        raise ValueError("can't get size with trackfd=False")


def test_maps_without_a_file_of_a_size_are_not_watched():
    with open("/dev/zero", "r+b") as device:
        mappings = [
            mmap.mmap(-1, SIZE),
            mmap.mmap(device.fileno(), SIZE),
            Untracked(-1, SIZE),
            memoryview(mmap.mmap(-1, SIZE)),
        ]
    for mapping in mappings:
        endpoint = portable.Endpoint()
        endpoint.attach(0, mapping, SIZE)
        assert endpoint.faa(64, 1) == 0
        assert endpoint.load(64) == 1
        endpoint.detach()


def test_a_file_that_cannot_be_asked_is_an_error():
    class Broken(mmap.mmap):
        def size(self):
            raise OSError(5, "Input/output error")

    with Broken(-1, SIZE) as mapping, pytest.raises(OSError, match="Input/output"):
        portable.Endpoint().attach(0, mapping, SIZE)


def test_a_waiting_thread_that_hardly_runs_goes_before_one_that_has_had_many_turns(monkeypatch):
    """Python lets the waiting one look once while the other has any number of turns."""
    turns, main = Turns(), threading.get_ident()
    waits, may_look, had_its_turn = (threading.Event() for _ in range(3))

    def sleep(seconds: float) -> None:
        if threading.get_ident() != main:
            waits.set()
            assert may_look.wait(60)
        else:
            may_look.set()
            assert had_its_turn.wait(60)

    def have_a_turn() -> None:
        turns.enter((threading.get_ident(), sys._getframe()), lambda: None)
        turns.leave()

    def wait_for_a_turn() -> None:
        have_a_turn()
        had_its_turn.set()

    turns.enter((main, sys._getframe()), lambda: None)
    monkeypatch.setattr("time.sleep", sleep)
    thread = threading.Thread(target=wait_for_a_turn, daemon=True)
    thread.start()
    assert waits.wait(60)
    turns.leave()
    had = 0
    while not had_its_turn.is_set() and had < 10 * TURNS:
        have_a_turn()
        had += 1
    may_look.set()
    thread.join(60)
    assert had == TURNS + 1
    assert not turns._waiting


@pytest.mark.parametrize("size", [0, 7, 8, 16, 23, 24, 512, 520, 4095])
@pytest.mark.parametrize("offset", [0, 8, 3])
def test_copies_with_barriers_are_those_without(monkeypatch, offset, size):
    """As on a CPU that takes plain loads and stores out of order."""
    data = bytes(index * 7 & 0xFF for index in range(size))
    with endpoint_on(portable, mmap.mmap(-1, SIZE)) as endpoint:
        endpoint.write(0, b"\xee" * SIZE)
        monkeypatch.setattr(portable_node, "IN_ORDER", False)
        endpoint.write(offset, data)
        assert endpoint.read(offset, size) == data
        around = endpoint.read(0, SIZE)
        assert endpoint.cas(8, 0, 1) == endpoint.mcas(8, 0, 1, 2**64 - 1, 1)
        monkeypatch.undo()
        assert endpoint.read(0, SIZE) == around
    assert around == b"\xee" * offset + data + b"\xee" * (SIZE - offset - size)
