"""Sequential specifications of channels: a deque, a topic, a table of holders, a queue with acks.

Each is one object, so its history is judged as a whole (channel_history.judge). All values that are
put are different. A client's death is an operation of its own, `die`: what the client held is free
from some moment after it on, and its cut operations take effect before that, or never.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from limpet.fault.check.models import Model

# ---- a deque -----------------------------------------------------------------------------------


class DequeOp(NamedTuple):
    """`kind`: "append", "appendleft", and "full" where that was refused; "pop", "popleft" (`value`
    None: not known), and "empty" where that was refused; "clear"; "list", which `found` these."""

    kind: str
    value: bytes | None = None
    found: tuple[bytes, ...] = ()


class DequeModel(Model[tuple[bytes, ...], DequeOp]):
    """Its state is the elements from left to right. `bounded`: one that finds no room takes the
    place of that at the other end."""

    def __init__(self, size: int, bounded: bool) -> None:
        self.size = size
        self.bounded = bounded

    def init(self) -> tuple[bytes, ...]:
        return ()

    def step(self, state: tuple[bytes, ...], op: DequeOp) -> tuple[bytes, ...] | None:
        full = len(state) == self.size
        match op.kind:
            case "append" | "appendleft":
                assert op.value is not None
                if full and not self.bounded:
                    return None
                if op.kind == "append":
                    return (*state[full:], op.value)
                return (op.value, *state[: len(state) - full])
            case "pop" | "popleft":
                left = op.kind == "popleft"
                if not state or op.value not in (None, state[0 if left else -1]):
                    return None
                return state[1:] if left else state[:-1]
            case "clear":
                return ()
            case "full":
                return state if full and not self.bounded else None
            case "empty":
                return None if state else state
        return state if op.found == state else None

    def pure(self, op: DequeOp) -> bool:
        return op.kind in ("full", "empty", "list")


# ---- a topic -----------------------------------------------------------------------------------


class TopicOp(NamedTuple):
    """`kind`: "publish" of message `number` (-1: not known); "get", by a subscription at
    `position`, of message `number`, and it counted `missed` ones; "none", which found no message;
    "now" and "oldest", which begin at `position`; "published", which found `number`."""

    kind: str
    value: bytes = b""
    position: int = 0
    number: int = -1
    missed: int = 0


class TopicModel(Model[tuple[bytes, ...], TopicOp]):
    """Its state is all messages that were ever published; the last `size` of them are kept."""

    def __init__(self, size: int) -> None:
        self.size = size

    def init(self) -> tuple[bytes, ...]:
        return ()

    def step(self, state: tuple[bytes, ...], op: TopicOp) -> tuple[bytes, ...] | None:
        end = len(state)
        oldest = max(0, end - self.size)
        if op.kind == "publish":
            return (*state, op.value) if op.number in (-1, end) else None
        if op.kind == "get":
            first = max(op.position, oldest)
            counted = (first, first - op.position) == (op.number, op.missed)
            return state if counted and first < end and state[first] == op.value else None
        found = op.number if op.kind == "published" else op.position
        return state if found == (oldest if op.kind == "oldest" else end) else None

    def pure(self, op: TopicOp) -> bool:
        return op.kind != "publish"


# ---- a table of holders: a semaphore, a reader-writer lock ---------------------------------------

NOBODY: Final = -1


class HoldOp(NamedTuple):
    """`kind`: "take" and "release"; "refused", which could not take; "over", a release that was
    refused; "die". `inherited`: what the client was told (None: it was not)."""

    kind: str
    client: int
    exclusive: bool = False
    inherited: bool | None = None


class Held(NamedTuple):
    """`taken`: below 0 if more was released than taken. `held`: by each client. `writer`: the
    client that holds all. `died`: how many holds were a dead client's. `gone`: the dead."""

    taken: int
    held: tuple[int, ...]
    writer: int = NOBODY
    died: int = 0
    gone: frozenset[int] = frozenset()

    def with_held(self, client: int, count: int) -> tuple[int, ...]:
        return (*self.held[:client], count, *self.held[client + 1 :])


class HoldersModel(Model[Held, HoldOp]):
    """Up to `limit` holds, or one that is exclusive; `limit` None: a reader-writer lock."""

    def __init__(self, clients: int, limit: int | None, bounded: bool = False) -> None:
        self.clients = clients
        self.limit = limit
        self.bounded = bounded

    def init(self) -> Held:
        return Held(0, (0,) * self.clients)

    def step(self, state: Held, op: HoldOp) -> Held | None:
        if op.kind == "die":
            return self._without(state, op.client)
        if op.client in state.gone:
            return None
        if op.kind == "take":
            return self._take(state, op) if self._fits(state, op.exclusive) else None
        if op.kind == "refused":
            return None if self._fits(state, op.exclusive) else state
        over = self.bounded and state.taken < 1
        if op.kind == "over":
            return state if over else None
        return None if over else self._release(state, op)

    def pure(self, op: HoldOp) -> bool:
        return op.kind in ("refused", "over")

    def _fits(self, state: Held, exclusive: bool) -> bool:
        if state.writer != NOBODY:
            return False
        if exclusive:
            return not state.taken
        return self.limit is None or state.taken < self.limit

    def _take(self, state: Held, op: HoldOp) -> Held | None:
        if op.inherited not in (None, state.died > 0):
            return None
        if op.exclusive:
            return state._replace(writer=op.client, died=0)
        return state._replace(
            taken=state.taken + 1,
            held=state.with_held(op.client, state.held[op.client] + 1),
            died=state.died - (self.limit is not None and state.died > 0),
        )

    def _release(self, state: Held, op: HoldOp) -> Held | None:
        """A client without a permit gives back one of the first client that has some."""
        if op.exclusive:
            return state._replace(writer=NOBODY) if state.writer == op.client else None
        whose = op.client
        if not state.held[whose]:
            if self.limit is None:
                return None
            if self.limit:
                whose = next((who for who, held in enumerate(state.held) if held), whose)
        return state._replace(
            taken=state.taken - 1, held=state.with_held(whose, max(0, state.held[whose] - 1))
        )

    def _without(self, state: Held, client: int) -> Held:
        """A death frees no more permits than were taken, and of a lock only a writer's is told."""
        back = max(0, min(state.held[client], state.taken))
        wrote = state.writer == client
        return Held(
            state.taken - back,
            state.with_held(client, 0),
            NOBODY if wrote else state.writer,
            state.died + (wrote if self.limit is None else back),
            state.gone | {client},
        )


# ---- a queue with acks ---------------------------------------------------------------------------

READY: Final = "ready"
DELAYED: Final = "delayed"
HELD: Final = "held"
LETTER: Final = "letter"
HELD_LETTER: Final = "held letter"


class Job(NamedTuple):
    """A job in the queue, or a dead letter. `holder`: NOBODY, or the client that holds it."""

    value: bytes
    level: int
    key: bytes
    state: str
    deliveries: int = 0
    holder: int = NOBODY


class JobOp(NamedTuple):
    """`kind`: "put" of `value`, with priority `level` and `key`, `delayed` or not; "exists", "full"
    where that was refused; "get" of it (None: not known), for the `deliveries`th time, and "none";
    "letter", which got a dead letter, and "no letter", which any state allows, as those of the dead
    come back some time later; "ack", "nack", "retry" by its holder; "due": if it is delayed, it is
    ready; "die"."""

    kind: str
    client: int = NOBODY
    value: bytes | None = None
    level: int = 0
    key: bytes = b""
    delayed: bool = False
    deliveries: int = 0


class Jobs(NamedTuple):
    """The jobs in the order in which they were put; the dead clients."""

    jobs: tuple[Job, ...] = ()
    gone: frozenset[int] = frozenset()

    def with_job(self, at: int, *job: Job) -> Jobs:
        return self._replace(jobs=(*self.jobs[:at], *job, *self.jobs[at + 1 :]))


class JobsModel(Model[Jobs, JobOp]):
    """Each job is delivered until it is acknowledged, `deliveries_max` times at most."""

    def __init__(self, maxsize: int, deliveries_max: int) -> None:
        self.maxsize = maxsize
        self.deliveries_max = deliveries_max

    def init(self) -> Jobs:
        return Jobs()

    def step(self, state: Jobs, op: JobOp) -> Jobs | None:
        if op.client in state.gone:
            return None
        match op.kind:
            case "put":
                return self._put(state, op)
            case "exists":
                return state if self._exists(state, op.key) else None
            case "full":
                return state if len(state.jobs) == self.maxsize else None
            case "get":
                return self._get(state, op)
            case "none":
                return None if self._first(state) is not None else state
            case "no letter":
                return state
            case "die":
                jobs = [self._back(job) if job.holder == op.client else job for job in state.jobs]
                return Jobs(tuple(jobs), state.gone | {op.client})
        at = next((at for at, job in enumerate(state.jobs) if job.value == op.value), NOBODY)
        job = state.jobs[at] if at != NOBODY else None
        if op.kind == "due":
            if job is None or job.state != DELAYED:
                return state
            return state.with_job(at, job._replace(state=READY))
        return None if job is None else self._change(state, op, at, job)

    def pure(self, op: JobOp) -> bool:
        return op.kind in ("exists", "full", "none", "no letter")

    def _exists(self, state: Jobs, key: bytes) -> bool:
        letters = (LETTER, HELD_LETTER)
        return any(job.key == key and job.state not in letters for job in state.jobs)

    def _put(self, state: Jobs, op: JobOp) -> Jobs | None:
        assert op.value is not None
        if len(state.jobs) == self.maxsize or (op.key and self._exists(state, op.key)):
            return None
        job = Job(op.value, op.level, op.key, DELAYED if op.delayed else READY)
        return state._replace(jobs=(*state.jobs, job))

    def _first(self, state: Jobs) -> int | None:
        """Where the job is that is delivered next: the oldest one of the highest priority."""
        ready = [(-job.level, at) for at, job in enumerate(state.jobs) if job.state == READY]
        return min(ready)[1] if ready else None

    def _get(self, state: Jobs, op: JobOp) -> Jobs | None:
        at = self._first(state)
        if at is None:
            return None
        job = state.jobs[at]
        job = job._replace(state=HELD, holder=op.client, deliveries=job.deliveries + 1)
        if op.value is not None and (job.value, job.deliveries) != (op.value, op.deliveries):
            return None
        return state.with_job(at, job)

    def _change(self, state: Jobs, op: JobOp, at: int, job: Job) -> Jobs | None:
        if op.kind == "letter":
            held = job._replace(state=HELD_LETTER, holder=op.client)
            return state.with_job(at, held) if job.state == LETTER else None
        if job.holder != op.client:
            return None
        if op.kind == "ack":
            return state.with_job(at)
        if op.kind == "nack":
            return state.with_job(at, self._back(job, op.delayed))
        again = job._replace(state=READY, holder=NOBODY, deliveries=0)
        return state.with_job(at, again) if job.state == HELD_LETTER else None

    def _back(self, job: Job, delayed: bool = False) -> Job:
        """The job when it was given back."""
        if job.state == HELD_LETTER or job.deliveries >= self.deliveries_max:
            return job._replace(state=LETTER, holder=NOBODY)
        return job._replace(state=DELAYED if delayed else READY, holder=NOBODY)
