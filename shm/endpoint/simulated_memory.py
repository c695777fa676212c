"""Memory of the simulated fabric: it may lose power, or be cached, and posted verbs may be late.

Memory without hardware coherence. `PrivateCache` is one client's cache for the range of a node that
is not coherent. Its lines are there from the start and never leave, so they are as stale as
possible. The model has no line that leaves the cache by itself, as a real line may at any time.

Power cuts. `PersistentMemory` knows, for each line of 64 bytes, the contents that were surely
persistent last and each version since. A power cut leaves of each line one of these versions, or
one that is cut between two of its words. The caches of clients are coherent here: each sees the
newest version.

Posted verbs (verbs.pyx says what one is) of a simulated client, some done late. Each is a step of
its own. If the schedule says nothing, it is done where it is posted. The schedule may instead say,
only of a posted verb, that it is done late: after K more verbs of its client, in its `wait` at the
latest. So posted verbs are done in any order across nodes, and later than words of the control
segment that the client writes meanwhile. On one node they keep their order: what is posted behind a
late verb is late, too, and a verb that is not posted has those on its node done first. Each late
verb is a step at which the schedule may kill the client; the verbs that were not done until then
never are. (A NIC may still do them after the process has died; so on a fabric, fencing a client
must come before what relies on its death.)

The background of an operation (verbs.pyx). A verb that a client sends is done where it is sent, a
step each, as on mapped memory. The schedule may have it late: the operation goes on, and returns,
other clients go on and see that, and this client does as well. A late verb, and all that were sent
behind it on its node or on the control segment, are done after K more verbs of the client; before
its next verb on that node; before it waits for others; or at its end. A word of the control segment
that is sent is written after all that was posted before it, too, though the client never waits for
that. A client that is killed before that takes them with it. A lost node refuses them, and so does
the guard of a client that was declared dead.

Whenever a posted verb is done, its results come with `wait`. Until then a ticket is a word that
means nothing, `result` raises PhaseError, an image raises it for any look, and the words that are
read into have the value POISON. A protocol that looks at these too early goes wrong, and that is
found by what it does: PhaseError, if POISON or a ticket is an argument of a verb, and else by the
history.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from limpet.shm.errors import ClientError, NodeFailed, PhaseError

LINE: Final = 64
MAP_FIXED: Final = 0x10
"""Of Linux; the module mmap does not have it."""


class PersistentMemory:
    """The contents that a power cut would leave of some mappings: `segments`, by their nodes."""

    def __init__(self, segments: Mapping[int, memoryview]) -> None:
        self.segments = segments
        self._last: dict[int, bytes] = {}
        self._versions: dict[tuple[int, int], list[bytes]] = {}
        """For a line, by node and offset: the versions since it was persistent, that one first."""
        self.begin()

    def begin(self) -> None:
        """Everything is persistent now, with its present contents."""
        self._last = {node: bytes(segment) for node, segment in self.segments.items()}
        self._versions = {}

    def changed(self, addr: int, size: int) -> None:
        """The lines of these bytes have new contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            found = bytes(memory[line : line + LINE])
            versions = self._versions.setdefault(
                (node, line), [self._last[node][line : line + LINE]]
            )
            if found != versions[-1]:
                versions.append(found)

    def written_back(self, addr: int, size: int) -> None:
        """The lines of these bytes are persistent, with their present contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            if (node, line) in self._versions:
                self._versions[node, line] = [bytes(memory[line : line + LINE])]

    @property
    def unflushed(self) -> int:
        """How many lines have a version that is not persistent."""
        return sum(len(versions) > 1 for versions in self._versions.values())

    def cut(self, choose: Callable[[int], int]) -> None:
        """Leave of each line one of its versions: `choose(n)` returns one of 0 to n - 1, 0 being
        the oldest. Everything is persistent afterwards."""
        for (node, line), versions in sorted(self._versions.items()):
            history = _by_words(versions)
            self.segments[node][line : line + LINE] = history[choose(len(history))]
        self.begin()


def _lines(addr: int, size: int) -> range:
    """The offsets of the lines of some bytes."""
    offset = addr & (1 << 40) - 1
    return range(offset & -LINE, offset + size, LINE)


def _by_words(versions: list[bytes]) -> list[bytes]:
    """The versions of a line, with those in between in which only the first changed words of a
    longer write are there."""
    found = versions[:1]
    for version in versions[1:]:
        now = bytearray(found[-1])
        for at in range(0, LINE, 8):
            if now[at : at + 8] != version[at : at + 8]:
                now[at : at + 8] = version[at : at + 8]
                found.append(bytes(now))
    return found


class PrivateCache:
    """The cache of one client for one node: `mine` is its contents, `clean` those as fetched."""

    def __init__(self, mine: memoryview, memory: memoryview, start: int) -> None:
        self.start = start
        _make_private(mine, start)
        self.mine = mine
        self.memory = memory
        self.clean = bytearray(len(mine))
        self.fill()

    def fill(self) -> None:
        self.fetch(self.start, len(self.mine) - self.start)

    def _lines(self, offset: int, size: int) -> tuple[int, int]:
        first = max(offset, self.start) & -LINE
        return first, max(first, min(offset + size + LINE - 1 & -LINE, len(self.mine)))

    def fetch(self, offset: int, size: int) -> None:
        """Take the lines of these bytes from memory."""
        first, end = self._lines(offset, size)
        self.mine[first:end] = self.clean[first:end] = self.memory[first:end]

    def write_back(self, offset: int, size: int) -> None:
        """Push those lines of these bytes to memory that were written to."""
        first, end = self._lines(offset, size)
        if bytes(self.mine[first:end]) == self.clean[first:end]:
            return
        for line in range(first, end, LINE):
            held = bytes(self.mine[line : line + LINE])
            if held != self.clean[line : line + LINE]:
                self.memory[line : line + LINE] = self.clean[line : line + LINE] = held


def _make_private(mapping: memoryview, start: int) -> None:
    """Put private, zero-filled pages in place of a shared mapping's, from byte `start` on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + start
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    made = libc.mmap(at, len(mapping) - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if made != at:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


POISON: Final = 0xBAD0_1EAF_0000_0000
"""The words of a buffer whose read is only posted; with a number in bits 0-31, a ticket."""
CONTROL_NODE: Final = 255


class Late(BaseException):
    """The schedule has a posted or sent verb done late. It does not leave the endpoint."""


def nothing(_: Any = None) -> None:
    """The work, or the arrival, of what has none."""


class Posted:
    """A posted verb: `work` does it and returns its result; `arrive` gets the result in `wait`."""

    def __init__(
        self,
        verb: str,
        addr: int,
        work: Callable[[], Any],
        arrive: Callable[[Any], None] = nothing,
        dispensable: bool = False,
    ) -> None:
        """`dispensable`: if its node is lost, no client has to hear of it."""
        self.verb = verb
        self.addr = addr
        self.node = addr >> 40
        self.work = work
        self.arrive = arrive
        self.dispensable = dispensable
        self.due = 0
        self.done = False
        self.result: Any = None
        self.error: NodeFailed | None = None

    def __str__(self) -> str:
        return f"{self.verb} at {self.addr:#x}"


class Phase:
    """The verbs that a client has posted since its last `wait`, and its operation's results."""

    def __init__(self) -> None:
        self.posting = False
        """Whether the verb that comes now is posted or sent, so that it may be late."""
        self.sending = False
        """Whether it is sent."""
        self.forget()
        self._verbs_late = 0
        """By how many verbs the verb is late that raises Late."""
        self._is_doing = False
        """Whether a late verb is being done."""

    def forget(self) -> None:
        """Forget all: the client is dead, or its run has ended."""
        self._verbs = 0
        """Verbs of this client so far."""
        self._tickets = 0
        self._late: list[Posted] = []
        """The verbs of this phase that are not done."""
        self._sent: list[Posted] = []
        """The verbs that were sent and are not done, of this operation and of earlier ones."""
        self._forget_results()

    def _forget_results(self) -> None:
        self._posted: list[Posted] = []
        """The verbs of this phase."""
        self._results: dict[int, Posted] = {}
        """Those of this operation that have a result, by ticket."""
        self._open: set[int] = set()
        """The tickets of this phase."""

    # ---- posting --------------------------------------------------------------------------------

    def post(
        self,
        verb: str,
        addr: int,
        work: Callable[[], Any],
        arrive: Callable[[Any], None] = nothing,
        dispensable: bool = False,
    ) -> Posted:
        """Post a verb: do it now, or note that it is late."""
        posted = Posted(verb, addr, work, arrive, dispensable)
        if any(other.node == posted.node for other in self._sent):
            self._catch_up(posted.node)
        before = [other for other in self._late if other.node == posted.node]
        if before:
            posted.due = before[-1].due
            self._late.append(posted)
            self._posted.append(posted)
            return posted
        self.posting = posted.node != CONTROL_NODE
        try:
            posted.result = work()
            posted.done = True
        except Late:
            posted.due = self._verbs + self._verbs_late
            self._late.append(posted)
        finally:
            self.posting = False
        # Here, as nothing arrives of a verb that has failed.
        self._posted.append(posted)
        return posted

    def then(self, addr: int, work: Callable[[], Any]) -> Posted:
        """Do `work` in `wait`, after what was posted before it has arrived."""
        posted = Posted("read", addr, nothing)

        def arrive(_: Any) -> None:
            posted.result = work()

        posted.arrive = arrive
        posted.done = True
        self._posted.append(posted)
        return posted

    def ticket_of(self, posted: Posted) -> int:
        """A ticket for the result."""
        self._tickets = self._tickets + 1 & 0xFFFF_FFFF
        ticket = POISON | self._tickets
        self._results[ticket] = posted
        self._open.add(ticket)
        return ticket

    def earlier(self, ticket: int, addr: int) -> Posted:
        """The verb with this ticket, which a verb at `addr` depends on; PhaseError: it cannot."""
        posted = self._results.get(ticket)
        if posted is None or ticket not in self._open or posted.node != addr >> 40:
            raise PhaseError(
                f"the verb at {addr:#x} depends on one that is not of its phase and node: {posted}"
            )
        return posted

    def require_sound(self, verb: str, *words: int) -> None:
        """Raise PhaseError if an argument of a verb was looked at too early."""
        for word in words:
            if word >> 32 << 32 == POISON:
                of = f" of {self._results[word]}" if word in self._results else ""
                raise PhaseError(
                    f"{verb} uses a result{of} that was looked at before `wait`, "
                    "or without `result`"
                )

    # ---- doing ----------------------------------------------------------------------------------

    def before_verb(self, node: int) -> None:
        """A verb on this node comes: do the late verbs that are due, and those on its node."""
        while self._late and not self._is_doing:
            due = [one for one in self._late if one.due <= self._verbs or one.node == node]
            if not due:
                break
            self._do_first(due)
        if self._sent and not self._is_doing:
            self._do_those(lambda one: one.due <= self._verbs or one.node == node)
        self._verbs += 1

    def delay(self, verbs: int) -> NoReturn:
        """Do the verb that is being posted after so many more verbs."""
        self._verbs_late = verbs
        raise Late

    def do_late(self) -> None:
        """Do all late verbs."""
        while self._late:
            self._do_first(self._late)

    # ---- what is sent ---------------------------------------------------------------------------

    def send(self, verb: str, addr: int, work: Callable[[], Any]) -> None:
        """Send a verb: do it now, or note that it is late."""
        posted = Posted(verb, addr, work)
        before = [one.due for one in self._sent if posted.node in (one.node, CONTROL_NODE)]
        if posted.node == CONTROL_NODE:
            before += [one.due for one in self._late]
        if before:
            posted.due = max(before)
            self._sent.append(posted)
            return
        self.posting = self.sending = True
        try:
            work()
        except Late:
            posted.due = self._verbs + self._verbs_late
            self._sent.append(posted)
        finally:
            self.posting = self.sending = False

    def do_sent(self) -> None:
        """Do all that was sent."""
        while self._sent:
            self._do_sent(self._sent[0])

    def _do_sent(self, posted: Posted) -> None:
        if posted.node == CONTROL_NODE:
            self.do_late()
        self._sent.remove(posted)
        doing, self._is_doing, self.sending = self._is_doing, True, True
        # as in `_do_first`
        posting, self.posting = self.posting, False
        try:
            posted.work()
        except (NodeFailed, ClientError):
            pass  # it is refused, and no client hears of it
        finally:
            self._is_doing, self.sending, self.posting = doing, False, posting

    def _catch_up(self, node: int) -> None:
        """Do what was posted late or sent on this node, and what is before that."""
        while any(one.node == node for one in self._late):
            self._do_first([one for one in self._late if one.node == node])
        self._do_those(lambda one: one.node == node)

    def _do_those(self, chosen: Callable[[Posted], bool]) -> None:
        """Do those of the sent verbs, in their order: one of the control segment after all that
        were sent before it, the others after those on their node."""
        while found := [one for one in self._sent if chosen(one)]:
            last = found[0]
            for one in self._sent[: self._sent.index(last) + 1]:
                if last.node in (one.node, CONTROL_NODE):
                    self._do_sent(one)

    def _do_first(self, due: list[Posted]) -> None:
        """Do the verb of these that is due first, or rather the first late one on its node."""
        node = min(due, key=_by_due).node
        posted = next(one for one in self._late if one.node == node)
        self._late.remove(posted)
        self._is_doing = True
        # a verb that is posted now may be late, and this one is so already
        posting, self.posting = self.posting, False
        try:
            posted.result = posted.work()
            posted.done = True
        except NodeFailed as error:
            posted.error = None if posted.dispensable else error
        finally:
            self._is_doing = False
            self.posting = posting

    # ---- results --------------------------------------------------------------------------------

    def arrive(self) -> NodeFailed | None:
        """End the phase: all results arrive; the first error, if a node was lost."""
        self.do_late()
        phase, self._posted = self._posted, []
        self._open = set()
        error: NodeFailed | None = None
        for posted in phase:
            error = error or posted.error
            if posted.error is None:
                posted.arrive(posted.result)
        return error

    def result(self, ticket: int) -> int:
        """The result of a verb of this operation; PhaseError before the `wait` of its phase."""
        posted = self._results.get(ticket)
        if posted is None:
            raise PhaseError(f"{ticket:#x} is no ticket of this operation")
        if ticket in self._open:
            raise PhaseError(f"the result of {posted} was looked at before `wait`")
        found: int = posted.result
        return found

    def end_operation(self) -> None:
        """Do what was posted and is late, and forget the results."""
        self.do_late()
        self._forget_results()


def _by_due(posted: Posted) -> int:
    return posted.due
