"""The fabric when processes die, memory goes away, and processes fork."""

import gc
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from kit.fabrics import BOTH, NATIVE, SIZE, SKIP, address, endpoint_on, file_mapping
from kit.poison import PAGE, poison
from kit.processes import exit_code, exit_codes, fork

from limpet.shm.endpoint import portable
from limpet.shm.endpoint.states import FAILED, FORMER, IN_SERVICE, RESTORING, node_word
from limpet.shm.errors import AddressError, CoherenceError, NodeFailed, ReentrantUse

MAX = (1 << 64) - 1
VERBS = {
    "read": (16,), "read_into": (bytearray(16),), "write": (b"x" * 16,), "load": (),
    "read_words": (memoryview(bytearray(16)).cast("Q"), 2), "store": (1,), "swap": (1,),
    "write_gather": (memoryview(bytearray(16)).cast("Q"), 2, b"x", b"y"),
    "write_words": (memoryview(bytearray(16)).cast("Q"), 2),
    "cas": (0, 1), "faa": (1,), "fetch_or": (1,), "mcas": (0, 1, MAX, MAX),
    "futex_wait": (0, 0), "futex_wake": (1,),
}  # fmt: skip
ATOMICS = ("load", "store", "swap", "cas", "faa", "fetch_or", "mcas", "futex_wait", "futex_wake")
needs_native = pytest.mark.skipif(NATIVE is None, reason="a pure build has no native fabric")


@pytest.fixture(params=BOTH)
def fabric(request):
    return request.param


# ---- crash fuse ---------------------------------------------------------------------------------


def word(value):
    return struct.pack("Q", value)


def steps_of_write(offset, data):
    """The steps that a write counts: one for each aligned word that it touches."""
    steps = []
    while data:
        room = 8 - offset % 8
        steps.append((offset, data[:room]))
        offset, data = offset + room, data[room:]
    return steps


def fused_script():
    """Verb calls, and the steps (offset, bytes) that they take on memory of zeros."""
    rng = random.Random(3)
    odd, even, large = rng.randbytes(37), rng.randbytes(24), rng.randbytes(530)
    one, two = rng.randbytes(13), rng.randbytes(11)
    head = memoryview(bytearray(rng.randbytes(24))).cast("Q")
    gathered = head.tobytes()[:16] + one + bytes(3) + two
    return [
        (("write", 19, odd), steps_of_write(19, odd)),
        (("write", 64, even), steps_of_write(64, even)),
        (("write", 64, b""), []),
        (("read", 64, 24), []),
        (("store", 128, 7), [(128, word(7))]),
        (("load", 128), []),
        (("swap", 128, 8), [(128, word(8))]),
        (("cas", 128, 8, 9), [(128, word(9))]),
        (("cas", 128, 8, 1), [(128, word(9))]),
        (("faa", 128, MAX), [(128, word(8))]),
        (("fetch_or", 128, 1 << 63), [(128, word(1 << 63 | 8))]),
        (("mcas", 128, 8, 3, 0xFF, 0x0F), [(128, word(1 << 63 | 3))]),
        (("mcas", 128, 8, 3, 0xFF, 0x0F), [(128, word(1 << 63 | 3))]),
        (("wait",), []),
        (("write_gather", 256, head, 2, one, two), steps_of_write(256, gathered)),
        (("write_gather", 320, head, 1, b"", one), steps_of_write(320, head.tobytes()[:8] + one)),
        (("write_words", 400, head, 2, 1), steps_of_write(400, head.tobytes()[8:24])),
        (("write", 512, large), steps_of_write(512, large)),
    ]


@pytest.mark.exhaustive("both fabrics", quick=["native"])
def test_fuse_kills_in_place_of_each_step(fabric):
    """A child dies in place of its k-th step, and memory holds exactly the k - 1 before it."""
    script = fused_script()
    steps = [step for _, taken in script for step in taken]
    memory = bytearray(SIZE)
    mapping = mmap.mmap(-1, SIZE)
    with endpoint_on(fabric, mapping) as endpoint:

        def work():
            for (name, *arguments), _ in script:
                getattr(endpoint, name)(*arguments)

        for k in range(1, len(steps) + 1):
            mapping[:] = bytes(SIZE)
            endpoint.fuse = k
            assert exit_code(fork(work)) == -signal.SIGKILL, f"fuse = {k}"
            assert mapping[:] == memory, f"fuse = {k}"
            offset, data = steps[k - 1]
            memory[offset : offset + len(data)] = data
        mapping[:] = bytes(SIZE)
        endpoint.fuse = len(steps) + 1
        work()
        assert endpoint.fuse == 1
        assert mapping[:] == memory
        endpoint.fuse = 0
        mapping[:] = bytes(SIZE)
        work()
        assert endpoint.fuse == 0
        assert mapping[:] == memory


# ---- lost memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_truncated_node_fails_and_the_others_work_on(fabric, verb):
    with (
        file_mapping() as (descriptor, mapping),
        endpoint_on(fabric, mapping) as endpoint,
        mmap.mmap(-1, SIZE) as other,
    ):
        endpoint.attach(1, other, SIZE)
        endpoint.store(4096, 1)
        os.truncate(descriptor, 4096)
        before = endpoint.counters()
        for _ in range(2):
            with pytest.raises(NodeFailed) as failure:
                getattr(endpoint, verb)(4096, *VERBS[verb])
            assert failure.value.node == 0
            getattr(endpoint, verb)(address(1), *VERBS[verb])
        assert endpoint.lost(0)
        assert not endpoint.lost(1)
        assert not endpoint.lost(256)
        after = endpoint.counters()
        endpoint.reset_counters()
        for _ in range(2):
            getattr(endpoint, verb)(address(1), *VERBS[verb])
        done = endpoint.counters()
        # what failed is not counted
        assert {n: after[n] - before[n] for n in done if n != "cas_lost"} == {
            n: done[n] for n in done if n != "cas_lost"
        }
        endpoint.detach()


def test_a_mapping_without_its_descriptor_is_not_lost(fabric):
    """As in the instant in which one thread closes it while another one is in a verb."""
    with file_mapping() as (descriptor, _):
        os.close(own := os.dup(descriptor))
        with endpoint_on(fabric, mmap.mmap(descriptor, SIZE)) as endpoint:
            os.close(own)  # the number that was free
            try:
                assert endpoint.faa(0, 1) == 0
                assert endpoint.load(0) == 1
                assert not endpoint.lost(0)
            finally:
                os.dup2(descriptor, own)


def test_every_endpoint_on_a_lost_mapping_learns_of_it(fabric):
    with file_mapping() as (descriptor, mapping):
        first, second = fabric.Endpoint(), fabric.Endpoint()
        first.attach(0, mapping, SIZE)
        second.attach(5, mapping, SIZE)
        os.truncate(descriptor, 0)
        with pytest.raises(NodeFailed):
            first.load(0)
        with pytest.raises(NodeFailed):
            second.load(address(5))
        first.detach()
        second.detach()
        mapping.close()


def test_a_node_can_be_lost_while_threads_use_others(fabric):
    with (
        file_mapping() as (descriptor, mapping),
        endpoint_on(fabric, mapping) as endpoint,
        mmap.mmap(-1, SIZE) as other,
    ):
        elsewhere = fabric.Endpoint()
        elsewhere.attach(1, other, SIZE)
        stop = threading.Event()
        counts = []

        def work():
            count = 0
            while not stop.is_set() or not count:
                elsewhere.faa(address(1), 1)
                count += 1
            counts.append(count)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for size in (0, SIZE) * 5:
                os.truncate(descriptor, size)
                with pytest.raises(NodeFailed):
                    endpoint.write(0, b"x" * SIZE)
        finally:
            stop.set()
            thread.join()
        assert elsewhere.load(address(1)) == counts[0]
        elsewhere.detach()


def test_a_node_attached_after_a_loss_is_sound(fabric):
    endpoint = fabric.Endpoint()
    for _ in range(3):
        with file_mapping() as (descriptor, mapping):
            endpoint.attach(0, mapping, SIZE)
            assert not endpoint.lost(0)
            assert endpoint.faa(0, 1) == 0
            os.truncate(descriptor, 0)
            with pytest.raises(NodeFailed):
                endpoint.faa(0, 1)
            endpoint.detach()
            assert not endpoint.lost(0)
            mapping.close()


READS = ("read", "read_into", "load", "read_words")
LENGTH = 16 * PAGE


@needs_native
@pytest.mark.parametrize("verb", VERBS)
def test_a_poisoned_page_costs_what_is_on_it_and_the_right_to_write(verb):
    def allowed(fabric_of, at):
        if verb in READS:
            getattr(fabric_of, verb)(at, *VERBS[verb])
        else:
            with pytest.raises(NodeFailed, match="can be read"):
                getattr(fabric_of, verb)(at, *VERBS[verb])

    with file_mapping(LENGTH) as (descriptor, mapping):
        mapping[:] = random.Random(5).randbytes(LENGTH)
        with endpoint_on(NATIVE, mapping, size=LENGTH) as endpoint:
            elsewhere = NATIVE.Endpoint()
            elsewhere.attach(3, mapping, LENGTH)
            poison(mapping, 5 * PAGE + 8)
            assert endpoint.lost(0)
            assert endpoint.lost_pages(0) == elsewhere.lost_pages(3) == [(5 * PAGE, PAGE)]
            allowed(endpoint, 4 * PAGE)  # a verb that changes something finds out by this step
            content = os.pread(descriptor, LENGTH, 0)
            for at in (4 * PAGE, 6 * PAGE, 5 * PAGE - 32, 0, LENGTH - 32):
                allowed(endpoint, at)
            assert os.pread(descriptor, LENGTH, 0) == content
            for at in (5 * PAGE, 6 * PAGE - 16):
                for its in (endpoint, 0), (elsewhere, 3):
                    with pytest.raises(NodeFailed, match="poisoned"):
                        getattr(its[0], verb)(address(its[1], at), *VERBS[verb])
            for name in READS:
                getattr(elsewhere, name)(address(3), *VERBS[name])
            elsewhere.detach()
            with pytest.raises(AddressError):
                endpoint.read(0, LENGTH + 1)
            with pytest.raises(NodeFailed):
                endpoint.read(5 * PAGE - 8, 16)
            assert endpoint.read(0, 5 * PAGE) == content[: 5 * PAGE]
            assert endpoint.read(6 * PAGE, 100) == content[6 * PAGE :][:100]
            assert endpoint.load(4 * PAGE) == int.from_bytes(content[4 * PAGE :][:8], "little")
            image = endpoint.image(64, in_place=True)
            image.read(7 * PAGE, 8)
            assert image.cut(0, 64) == content[7 * PAGE :][:64]
            with pytest.raises(NodeFailed):
                image.read(5 * PAGE, 8)


@needs_native
def test_many_poisoned_pages_cost_the_node_and_one_the_control_segment():
    with file_mapping(64 * PAGE) as (_, mapping):
        for node, few in ((0, 8), (255, 0)):
            endpoint = NATIVE.Endpoint()
            endpoint.attach(node, mapping, 64 * PAGE)
            for page in range(few + 1):
                assert (endpoint.lost_pages(node) == []) == (page == 0)
                poison(mapping, 2 * page * PAGE)
            assert endpoint.lost_pages(node) == []
            with pytest.raises(NodeFailed, match="its memory is gone"):
                endpoint.load(address(node, 63 * PAGE))
            endpoint.detach()
        mapping.close()


@needs_native
@pytest.mark.parametrize("shift", [13, 21, 47])
def test_a_large_page_that_is_poisoned_is_lost_within_the_node(shift):
    with (
        file_mapping(LENGTH) as (_, mapping),
        endpoint_on(NATIVE, mapping, size=LENGTH) as endpoint,
    ):
        poison(mapping, 5 * PAGE, shift)
        ((low, size),) = endpoint.lost_pages(0)
        assert low <= 5 * PAGE < low + size
        assert low >= 0
        assert low + size <= LENGTH
        assert size == 2 * PAGE or shift > 13


def script_of(source):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SETTING) + textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


SETTING = """
    import faulthandler, mmap, os, resource, signal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from limpet.shm.errors import NodeFailed
    from limpet.shm.endpoint.verbs import Endpoint

    def mapping():
        descriptor = os.memfd_create("limpet-test")
        os.truncate(descriptor, 8192)
        return descriptor, mmap.mmap(descriptor, 8192)

    def lose(endpoint, node):
        descriptor, memory = mapping()
        endpoint.attach(node, memory, 8192)
        os.truncate(descriptor, 0)
        try:
            endpoint.load(node << 40)
        except NodeFailed:
            print("failed", node, flush=True)

    def foreign():
        descriptor, memory = mapping()
        os.truncate(descriptor, 0)
        return memory[0]
"""


@needs_native
def test_a_fault_on_foreign_memory_reaches_the_handler_that_was_there():
    code, out, err = script_of("""
        faulthandler.enable()
        lose(Endpoint(), 0)
        foreign()
    """)
    assert (code, out) == (-signal.SIGBUS, "failed 0\n")
    assert "Fatal Python error: Bus error" in err


@needs_native
def test_a_fault_on_foreign_memory_ends_the_process_where_nobody_handles_it():
    for before in ("", "signal.signal(signal.SIGBUS, signal.SIG_IGN)"):
        code, out, err = script_of(f"""
        {before}
        lose(Endpoint(), 0)
        foreign()
        """)
        assert (code, out, err) == (-signal.SIGBUS, "failed 0\n", "")


@needs_native
def test_memory_is_lost_and_not_another_files_whose_descriptor_has_the_number():
    """A longer file there would pass for a full file system, and be mapped in its place."""
    code, out, err = script_of("""
        endpoint = Endpoint()
        descriptor, memory = mapping()
        endpoint.attach(0, memory, 8192, None, 0, descriptor)
        os.truncate(f"/proc/self/fd/{descriptor}", 0)
        other, _ = mapping()
        os.dup2(other, descriptor)
        for _ in range(2):
            try:
                endpoint.load(0)
            except NodeFailed:
                print("failed", flush=True)
    """)
    assert (code, out, err) == (0, "failed\nfailed\n", "")


@needs_native
def test_a_sigbus_that_was_sent_reaches_the_handler_and_protection_stays():
    code, out, err = script_of("""
        signal.signal(signal.SIGBUS, lambda *_: print("handled", flush=True))
        endpoint = Endpoint()
        lose(endpoint, 0)
        for node in (1, 2):
            os.kill(os.getpid(), signal.SIGBUS)
            lose(endpoint, node)
    """)
    assert (code, err) == (0, "")
    assert out == "failed 0\nhandled\nfailed 1\nhandled\nfailed 2\n"


@needs_native
def test_a_sigbus_that_was_sent_ends_the_process_by_default():
    code, out, _ = script_of("""
        lose(Endpoint(), 0)
        os.kill(os.getpid(), signal.SIGBUS)
        print("alive")
    """)
    assert (code, out) == (-signal.SIGBUS, "failed 0\n")


# ---- nodes marked failed ------------------------------------------------------------------------


def test_a_node_marked_failed_refuses_before_it_changes_anything(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as control:
        endpoint.attach(255, control, SIZE)
        endpoint.watch_states(address(255, 2048))
        endpoint.store(address(255, 2048 + 8 * 0), 1)
        for verb, arguments in VERBS.items():
            with pytest.raises(NodeFailed, match="marked failed") as failure:
                getattr(endpoint, verb)(0, *arguments)
            assert failure.value.node == 0
        assert not endpoint.lost(0)
        assert endpoint.failed(8)
        endpoint.store(address(255, 2048), 0)
        assert not endpoint.failed(8)
        assert endpoint.read(0, 64) == bytes(64)
        endpoint.store(address(255, 2048 + 8 * 7), 1)
        assert endpoint.failed(address(7))  # no client has it, and it is marked
        assert not endpoint.failed(address(6))
        assert not endpoint.failed(address(255))
        assert not endpoint.failed((1 << 64) - 1)
        endpoint.faa(0, 1)
        endpoint.detach()


@pytest.mark.parametrize("verb", ["store", "swap", "faa", "fetch_or", "cas", "mcas"])
def test_a_node_marked_failed_during_a_verb_is_noticed_after_it(fabric, verb):
    """The verb itself marks its node, so the check before it passes and the one after it fails."""
    with endpoint_on(fabric, mmap.mmap(-1, SIZE), node=255) as endpoint:
        endpoint.watch_states(address(255))
        with pytest.raises(NodeFailed):
            getattr(endpoint, verb)(address(255, 8 * 255), *VERBS[verb])


def test_a_table_of_states_must_be_whole_and_aligned(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE), node=255) as endpoint:
        for addr in (address(255, SIZE - 2040), address(255, 4), address(254), -8 % 2**64):
            with pytest.raises(AddressError):
                endpoint.watch_states(addr)
        endpoint.watch_states(address(255, SIZE - 2048))
        endpoint.load(address(255))


def test_a_lost_table_of_states_leaves_the_nodes_in_use(fabric):
    with file_mapping() as (descriptor, control):
        endpoint = fabric.Endpoint()
        with mmap.mmap(-1, SIZE) as mapping:
            endpoint.attach(0, mapping, SIZE)
            endpoint.attach(255, control, SIZE)
            endpoint.watch_states(address(255))
            os.truncate(descriptor, 0)
            assert endpoint.faa(0, 1) == 0
            with pytest.raises(NodeFailed) as failure:
                endpoint.load(address(255, 4096))
            assert failure.value.node == 255
            assert endpoint.faa(0, 1) == 1
            endpoint.detach()
        control.close()


# ---- memory without hardware coherence ----------------------------------------------------------


@needs_native
def test_atomics_stay_in_the_coherent_range():
    endpoint = NATIVE.Endpoint()
    with mmap.mmap(-1, SIZE) as mapping, mmap.mmap(-1, SIZE) as plain:
        if "clflushopt" not in NATIVE.flush_features():
            with pytest.raises(CoherenceError, match="clflushopt"):
                endpoint.attach(0, mapping, SIZE, 4096)
            return
        endpoint.attach(0, mapping, SIZE, 4096)
        endpoint.attach(1, plain, SIZE)
        for offset in (0, 4096 - 16, 4096 - 3, 4096, 4096 + 13, SIZE - 1000):
            data = random.Random(offset).randbytes(min(1000, SIZE - offset))
            endpoint.write(offset, data)
            assert endpoint.read(offset, len(data)) == data == mapping[offset : offset + len(data)]
            buffer = bytearray(len(data))
            endpoint.read_into(offset, buffer)
            assert buffer == data
        words = memoryview(bytearray(b"12345678abcdefgh")).cast("Q")
        endpoint.write_gather(5000, words, 2, b"x", b"y")
        assert endpoint.read(5000, 25) == b"12345678abcdefghx" + bytes(7) + b"y"
        endpoint.write_words(5032, words, 1, 1)
        assert endpoint.read(5032, 8) == b"abcdefgh"
        endpoint.read_words(5008, words, 1)
        assert words.tobytes() == b"abcdefghabcdefgh"
        for verb in ATOMICS:
            before = mapping[:]
            for offset in (4096, SIZE - 8):
                with pytest.raises(CoherenceError):
                    getattr(endpoint, verb)(offset, *VERBS[verb])
            assert mapping[:] == before
            getattr(endpoint, verb)(4088, *VERBS[verb])
            getattr(endpoint, verb)(address(1, SIZE - 8), *VERBS[verb])
        endpoint.detach()


def test_a_bad_coherent_range_is_refused_and_nothing_attached(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as spare:
        with pytest.raises((OverflowError, CoherenceError)):
            endpoint.attach(1, spare, SIZE, -1)
        endpoint.attach(1, spare, SIZE)
        endpoint.faa(address(1), 1)
        endpoint.detach()


def test_trap_g4_portable_fabric_refuses_memory_it_cannot_flush():
    assert portable.flush_features() == frozenset()
    with endpoint_on(portable, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as spare:
        for coherent in (0, 4096, SIZE):
            with pytest.raises(CoherenceError, match="pure Python"):
                endpoint.attach(1, spare, SIZE, coherent)


# ---- forks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_begin_notices_a_fork_until_adopted(fabric, inside):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        if inside:
            endpoint.begin()

        def child():
            assert endpoint.begin() is True
            assert endpoint.begin() is True
            endpoint.adopted()
            assert endpoint.begin() is False
            with pytest.raises(ReentrantUse):
                endpoint.begin()
            endpoint.end()
            grandchild = fork(lambda: os._exit(7 if endpoint.begin() else 8))
            assert exit_codes([grandchild]) == [7]
            endpoint.begin()
            endpoint.end()

        assert exit_code(fork(child)) == 0
        if inside:
            with pytest.raises(ReentrantUse):
                endpoint.begin()
            endpoint.end()
        assert endpoint.begin() is False
        endpoint.end()


def test_an_endpoint_that_is_collected_after_the_memory_that_it_counts_in_is_no_crash(fabric):
    """As of a handle that nobody has closed, in a cycle, of which the memory is unmapped first."""

    class Cyclic(fabric.Endpoint):
        pass

    def forgets():
        endpoint = Cyclic()
        endpoint.itself = endpoint
        endpoint.attach(255, mmap.mmap(-1, SIZE), SIZE)
        endpoint.count_at(address(255))
        del endpoint
        gc.collect()

    assert exit_code(fork(forgets)) == 0


def test_a_child_forked_while_another_thread_is_inside_can_work(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        entered, leave = threading.Event(), threading.Event()

        def hold():
            endpoint.begin()
            entered.set()
            leave.wait(60)
            endpoint.end()

        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait(60)

        def child():
            assert endpoint.begin() is True
            endpoint.adopted()
            assert endpoint.begin() is False
            endpoint.end()

        try:
            assert exit_code(fork(child)) == 0
        finally:
            leave.set()
            thread.join()


def test_pause_lets_a_signal_handler_raise(fabric):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        previous = signal.signal(signal.SIGALRM, ring)

        def spin():
            for attempt in range(20_000):
                endpoint.pause(attempt)

        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Alarm):
                spin()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


# ---- native and portable processes on the same words --------------------------------------------

PAIRS = [
    pytest.param((NATIVE, portable), id="native-portable", marks=SKIP),
    pytest.param((NATIVE, NATIVE), id="native-native", marks=SKIP),
    pytest.param((portable, portable), id="portable-portable"),
]


def hammer(fabric, mapping, me, seconds):
    """All the verbs on shared words for a while, 32 times at least; what was done is counted in my
    own words.

    The words: 0 faa, 8 cas, 16 fetch_or, 24 mcas on half a word for each process, 32 swap, 64 a
    store of eight equal bytes, 128 eight words of eight equal bytes each, written in one go.
    """
    rng = random.Random(me)
    with endpoint_on(fabric, mapping) as endpoint:
        cas_won = swapped = count = 0
        endpoint.faa(4096, 1)
        while endpoint.load(4096) < 2:
            endpoint.pause(30)
        end = time.monotonic() + seconds
        while time.monotonic() < end or count < 32:
            endpoint.faa(0, me + 1)
            old = endpoint.load(8)
            cas_won += endpoint.cas(8, old, old + 1) == old
            bit = 1 << (32 * me + count % 32)
            assert bool(endpoint.fetch_or(16, bit) & bit) == (count >= 32)
            half = MAX >> 32 << 32 * me
            old = count << 32 * me
            assert endpoint.mcas(24, old, old + (1 << 32 * me), half, half) & half == old
            swapped += endpoint.swap(32, me + 1)
            endpoint.store(64, rng.randrange(256) * 0x0101010101010101)
            endpoint.write(128, b"".join(bytes([rng.randrange(256)]) * 8 for _ in range(8)))
            seen = struct.pack("Q", endpoint.load(64)) + endpoint.read(128, 64)
            for at in range(0, len(seen), 8):
                assert len(set(seen[at : at + 8])) == 1, f"torn word: {seen[at : at + 8].hex()}"
            count += 1
        endpoint.write(4104 + 24 * me, struct.pack("3Q", count, cas_won, swapped))


@pytest.mark.exhaustive("every pair of fabrics", quick=["native-portable"])
@pytest.mark.parametrize("pair", PAIRS)
def test_processes_of_any_build_agree_on_the_same_words(pair):
    with mmap.mmap(-1, SIZE) as mapping:
        children = [
            fork(lambda me=me, fabric=fabric: hammer(fabric, mapping, me, 0.8))
            for me, fabric in enumerate(pair)
        ]
        assert exit_codes(children) == [0, 0]
        faa, cas, bits, halves, last = struct.unpack_from("5Q", mapping)
        rounds0, won0, swapped0, rounds1, won1, swapped1 = struct.unpack_from("6Q", mapping, 4104)
        assert min(rounds0, rounds1) >= 32
        assert faa == rounds0 + 2 * rounds1
        assert cas == won0 + won1
        assert bits == MAX
        assert halves == rounds1 << 32 | rounds0
        # each value put in comes out once, but for the one that is still there
        assert swapped0 + swapped1 + last == rounds0 + 2 * rounds1


# ---- nodes that were replaced -------------------------------------------------------------------


def test_a_node_of_another_generation_refuses_every_verb(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as control:
        endpoint.attach(255, control, SIZE)
        endpoint.watch_states(address(255))
        endpoint.store(address(255), node_word(1, IN_SERVICE))
        for verb, arguments in VERBS.items():
            with pytest.raises(NodeFailed, match="was replaced") as failure:
                getattr(endpoint, verb)(0, *arguments)
            assert failure.value.node == 0
        endpoint.expect(0, node_word(1, IN_SERVICE))
        assert endpoint.read(0, 64) == bytes(64)
        for state, text in ((FAILED, "marked failed"), (RESTORING, "being replaced")):
            endpoint.store(address(255), node_word(1, state))
            with pytest.raises(NodeFailed, match=text):
                endpoint.load(0)
        endpoint.expect(0, node_word(1, RESTORING))
        endpoint.load(0)
        endpoint.detach()


def test_a_node_is_mapped_anew(fabric):
    new = mmap.mmap(-1, SIZE)
    new[:8] = (7).to_bytes(8, "little")
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint, mmap.mmap(-1, SIZE) as control:
        endpoint.attach(255, control, SIZE)
        endpoint.watch_states(address(255))
        assert endpoint.load(0) == 0
        endpoint.store(address(255), node_word(3, IN_SERVICE))
        endpoint.release(0)
        endpoint.release(0)
        with pytest.raises(NodeFailed, match="was replaced"):
            endpoint.load(0)
        with pytest.raises(AddressError):
            endpoint.expect(0, 1)
        assert endpoint.expected(0) == 0
        endpoint.attach(0, new, SIZE, None, node_word(3, IN_SERVICE))
        assert endpoint.load(0) == 7
        assert endpoint.expected(0) == node_word(3, IN_SERVICE)
        endpoint.store(address(255), node_word(4, IN_SERVICE))
        with pytest.raises(NodeFailed):
            endpoint.load(0)
        endpoint.detach()
    new.close()


def test_what_is_gone_with_a_node_is_refused_for_ever(fabric):
    with endpoint_on(fabric, mmap.mmap(-1, SIZE)) as endpoint:
        for verb, arguments in VERBS.items():
            with pytest.raises(NodeFailed, match="what was there is gone") as failure:
                getattr(endpoint, verb)(FORMER | 64, *arguments)
            assert failure.value.node == 0
        with pytest.raises(AddressError):
            endpoint.load(FORMER + address(255))
