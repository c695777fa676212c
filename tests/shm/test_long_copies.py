"""Copies of 64 KiB and more: whole, past the caches, and with the other threads at work."""

import mmap
import random
import threading
import time
from array import array

import pytest
from kit.fabrics import BOTH, NATIVE

from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.errors import AddressError

MIB = 1 << 20
SIZES = (65_535, 65_536, 65_544, 262_143, 262_144, 262_145, 262_144 + 72, 3 * MIB + 5)


@pytest.fixture(params=BOTH)
def fabric(request):
    return request.param


@pytest.mark.parametrize("offset", [0, 8, 40, 64])
def test_long_writes_are_whole_and_touch_nothing_around_them(fabric, offset):
    source = random.Random(offset).randbytes(SIZES[-1])
    endpoint = fabric.Endpoint()
    mapping = mmap.mmap(-1, 4 * MIB)
    endpoint.attach(0, mapping, 4 * MIB)
    try:
        for size in SIZES:
            data = source[:size]
            first = array("Q", [int.from_bytes(data[:8], "little")])
            for way in range(3):
                mapping[:] = b"\xee" * len(mapping)
                if way == 0:
                    endpoint.write(64 + offset, data)
                elif way == 1:
                    endpoint.write_gather(64 + offset, first, 1, data[8:], b"")
                else:
                    endpoint.write_gather(64 + offset, first, 1, data[8:16], data[16:])
                end = 64 + offset + size
                assert endpoint.read(64 + offset, size) == data
                into = bytearray(size)
                endpoint.read_into(64 + offset, into)
                assert into == data
                assert mapping[: 64 + offset] == b"\xee" * (64 + offset)
                # a gather list pads its first piece to a whole word
                assert mapping[end + 7 & ~7 : end + 64] == b"\xee" * (end + 64 - (end + 7 & ~7))
    finally:
        endpoint.detach()
        mapping.close()


@pytest.mark.skipif(BUILD == "pure", reason="Python's own copies keep the other threads waiting")
def test_other_threads_run_while_a_long_value_is_copied():
    size = 256 * MIB
    endpoint = NATIVE.Endpoint()
    mapping = mmap.mmap(-1, size)
    endpoint.attach(0, mapping, size)
    into = bytearray(size)
    stop = threading.Event()
    looks = [0]

    def watch():
        while not stop.is_set():
            time.sleep(0.001)
            looks[0] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        turns = 0
        for _ in range(20):  # on a busy machine the watcher may miss its turn in a copy
            before = looks[0]
            endpoint.read_into(0, into)
            turns = max(turns, looks[0] - before)
            if turns > 4:
                break
    finally:
        stop.set()
        watcher.join()
        endpoint.detach()
        mapping.close()
    # with the GIL held, the watcher would have had no turn in all that time
    assert turns > 4


@pytest.mark.skipif(BUILD == "pure", reason="Python's own copies keep the other threads waiting")
@pytest.mark.parametrize("writes", [False, True])
def test_a_node_that_is_detached_during_a_copy_is_an_error_and_not_a_crash(writes):
    # on a busy machine the copy has ended, or has not begun, when the other thread detaches
    assert any(is_detached_during_a_copy(writes) for _ in range(50))


def is_detached_during_a_copy(writes):
    """Whether the copy went on as another thread detached; it is an error then."""
    size = 256 * MIB
    endpoint = NATIVE.Endpoint()
    mapping = mmap.mmap(-1, size)
    endpoint.attach(0, mapping, size)
    buffer = bytearray(size)
    mapped = []

    def detach():
        time.sleep(0.005)
        endpoint.detach()
        try:
            mapping.close()
        except BufferError:
            mapped.append(True)

    copy = endpoint.write if writes else endpoint.read_into
    thread = threading.Thread(target=detach)
    thread.start()
    failed = False
    try:
        copy(0, buffer)
    except AddressError:
        failed = True
    finally:
        thread.join()
        if mapped:  # the mapping stays until the copy has ended
            mapping.close()
    assert failed or not mapped
    return bool(mapped)
