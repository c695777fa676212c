"""Channels under many schedules of clients that die and stand still, each judged by its model.

Their known-bad variants are rows of test_known_bad.py."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.fault.check.channel_history import judge
from limpet.fault.check.channel_models import (
    DequeModel,
    DequeOp,
    HoldersModel,
    HoldOp,
    JobOp,
    JobsModel,
    TopicModel,
    TopicOp,
)
from limpet.fault.check.linearize import Timed
from limpet.fault.check.notify_history import NotifyOp, judge_notifies
from limpet.fault.explore.explorer import Exploration, cluster_of, numbered_run
from limpet.fault.explore.sim_run import replay
from limpet.fault.explore.sim_subjects import CHANNELS
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("schedules of the same lines")

CASES: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "deque": ("deque", {}, 30),
    "deque-bounded": ("deque", {"bounded": True}, 20),
    "topic": ("topic", {}, 40),
    "semaphore": ("semaphore", {}, 30),
    "semaphore-bounded": ("semaphore", {"value": 2, "bounded": True}, 10),
    "semaphore-signals": ("semaphore", {"value": 0}, 10),
    "rwlock-writers": ("rwlock", {}, 25),
    "rwlock-readers": ("rwlock", {"prefer": "readers"}, 15),
    "condition": ("condition", {}, 40),
    "jobs": ("jobs", {}, 50),
}
"""Kinds and parameters, and the number of schedules; a quarter of it with remote clients."""
SEEN: Final = {
    "deque": {"append", "appendleft", "full", "pop", "popleft", "empty", "clear", "list"},
    "topic": {"publish", "get", "none", "now", "oldest", "published"},
    "semaphore": {"take", "refused", "release", "die"},
    "rwlock": {"take", "refused", "release", "die"},
    "condition": {"wait", "notify", "die"},
    "jobs": {"put", "exists", "get", "none", "ack", "nack", "no letter", "due", "die"},
}
"""Kinds of operations that the schedules of the usual parameters have."""


@pytest.mark.parametrize("remote", [False, True], ids=["mapped", "remote"])
@pytest.mark.parametrize("case", CASES)
def test_channel_keeps_its_promises_under_many_schedules(case: str, remote: bool) -> None:
    kind, given, runs = CASES[case]
    parameters = Exploration(kind, ops=3, parameters=given, remote=remote)
    seen: Counter[str] = Counter()
    with cluster_of(parameters) as cluster:
        for number in range(runs // 4 if remote else runs):
            run = numbered_run(cluster, parameters, number)
            assert run.failure == "", (number, run.program, run.schedule)
            seen.update(timed.op.kind for timed in run.history)
    assert given or remote or set(seen) >= SEEN[kind]


@pytest.mark.parametrize("kind", CHANNELS)
def test_run_is_the_same_again(kind: str) -> None:
    parameters = Exploration(kind)
    with cluster_of(parameters) as cluster:
        first, other = (numbered_run(cluster, parameters, 3) for _ in range(2))
        again = replay(cluster, first.program, first.schedule)
        assert first.digest() == other.digest() == again.digest()


def test_program_of_a_channel_is_replayed_by_the_command() -> None:
    command = ["drill", "explore", "deque", "--program", "a aL|q l", "--schedule", "0.0.9>1"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "everything held" in result.output
    with pytest.raises(ParameterError, match="none of"):
        Exploration("deque", clients=1, program="ua")
    with pytest.raises(ParameterError, match="durable"):
        Exploration("deque", durable=True)


# ---- histories that no such object has -----------------------------------------------------------


def histories(*ops: Any) -> list[Timed[Any]]:
    """Operations one after the other; those in a tuple at the same time, a cut one is a list."""
    found: list[Timed[Any]] = []
    for number, op in enumerate(ops):
        cut = isinstance(op, list)
        found.append(Timed(op[0] if cut else op, 10 * number, None if cut else 10 * number + 5))
    return found


def right_and_wrong(model: Any, *ops: Any, wrong: Any) -> None:
    """A model allows these operations, and not with `wrong` as the last."""
    assert judge(model, histories(*ops)) == ""
    assert "history" in judge(model, histories(*ops[:-1], wrong))


def test_histories_that_no_deque_has_are_refused() -> None:
    a, b = DequeOp("append", b"a"), DequeOp("appendleft", b"b")
    for bounded in (False, True):
        model = DequeModel(2, bounded)
        right_and_wrong(model, a, b, DequeOp("pop", b"a"), wrong=DequeOp("pop", b"b"))
        right_and_wrong(
            model, a, DequeOp("pop", b"a"), DequeOp("empty"), wrong=DequeOp("list", None, (b"a",))
        )
        right_and_wrong(model, a, [b], DequeOp("popleft", b"b"), wrong=DequeOp("popleft", b"c"))
        right_and_wrong(model, a, [DequeOp("pop")], DequeOp("empty"), wrong=DequeOp("full"))
    right_and_wrong(DequeModel(1, False), a, DequeOp("full"), wrong=b)
    right_and_wrong(DequeModel(1, True), a, b, DequeOp("pop", b"b"), wrong=DequeOp("pop", b"a"))


def test_histories_that_no_topic_has_are_refused() -> None:
    model = TopicModel(2)
    sent = [TopicOp("publish", b"%d" % number, number=number) for number in range(3)]
    get = TopicOp("get", b"1", position=0, number=1, missed=1)
    right_and_wrong(model, *sent, get, wrong=get._replace(missed=0))
    right_and_wrong(model, *sent, get, wrong=TopicOp("get", b"0", 0, 0))
    right_and_wrong(
        model, *sent[:2], TopicOp("none", position=2), wrong=TopicOp("none", position=1)
    )
    right_and_wrong(model, *sent, TopicOp("oldest", position=1), wrong=TopicOp("now", position=1))
    right_and_wrong(model, sent[0], sent[1], wrong=sent[2])


def test_histories_that_no_semaphore_has_are_refused() -> None:
    take = [HoldOp("take", client) for client in range(3)]
    die, over = HoldOp("die", 0), HoldOp("over", 1)
    model = HoldersModel(3, 1)
    right_and_wrong(model, take[0], HoldOp("refused", 1), wrong=take[1])
    right_and_wrong(model, take[0], die, take[1], wrong=HoldOp("refused", 1))
    right_and_wrong(model, take[0], [die], take[1], wrong=HoldOp("take", 1, inherited=False))
    right_and_wrong(
        model, take[0], die, HoldOp("refused", 0)._replace(kind="die", client=1), wrong=take[0]
    )
    right_and_wrong(
        HoldersModel(3, 1, True), take[0], HoldOp("release", 0), over, wrong=HoldOp("release", 1)
    )
    right_and_wrong(model, take[0], HoldOp("release", 1), take[2], wrong=HoldOp("refused", 2))


def test_histories_that_no_rwlock_has_are_refused() -> None:
    model = HoldersModel(3, None)
    read, write = HoldOp("take", 0), HoldOp("take", 1, True)
    right_and_wrong(model, read, HoldOp("take", 2), wrong=write)
    right_and_wrong(model, write, HoldOp("refused", 2), wrong=HoldOp("take", 2))
    right_and_wrong(
        model,
        write,
        HoldOp("die", 1),
        HoldOp("take", 0, False, True),
        wrong=HoldOp("take", 0, False, False),
    )
    right_and_wrong(
        model,
        read,
        HoldOp("die", 0),
        HoldOp("take", 1, True, False),
        wrong=HoldOp("take", 1, True, True),
    )


def test_histories_that_no_queue_of_jobs_has_are_refused() -> None:
    model = JobsModel(2, 2)
    low, high = JobOp("put", 0, b"a", key=b"k"), JobOp("put", 0, b"b", level=3)

    def get(client: int, value: bytes, deliveries: int = 1) -> JobOp:
        return JobOp("get", client, value, deliveries=deliveries)

    nack, die = JobOp("nack", 1, b"a"), JobOp("die", 1)
    right_and_wrong(model, low, high, get(1, b"b"), wrong=get(1, b"a"))
    right_and_wrong(model, low, JobOp("exists", 0, key=b"k"), wrong=low._replace(value=b"c"))
    right_and_wrong(model, low, high, JobOp("full"), wrong=JobOp("put", 0, b"c"))
    right_and_wrong(model, low, get(1, b"a"), JobOp("none", 2), wrong=get(2, b"a", 2))
    right_and_wrong(model, low, get(1, b"a"), die, get(2, b"a", 2), wrong=JobOp("none", 2))
    right_and_wrong(
        model, low, get(1, b"a"), JobOp("ack", 1, b"a"), JobOp("none", 2), wrong=get(2, b"a", 2)
    )
    twice = [low, get(1, b"a"), nack, get(1, b"a", 2), nack]
    right_and_wrong(model, *twice, JobOp("letter", 2, b"a"), wrong=get(1, b"a", 3))
    right_and_wrong(model, low, get(1, b"a"), nack, get(2, b"a", 2), wrong=JobOp("letter", 2, b"a"))
    delayed = low._replace(delayed=True)
    right_and_wrong(model, delayed, [JobOp("due", value=b"a")], get(1, b"a"), wrong=get(1, b"a", 2))
    right_and_wrong(model, delayed, JobOp("none", 1), wrong=get(1, b"a"))


def test_histories_that_no_condition_has_are_refused() -> None:
    def wait(client: int, called: int, returned: int | None, told: bool) -> Timed[NotifyOp]:
        return Timed(NotifyOp("wait", client, told=told), called, returned)

    notify = Timed(NotifyOp("notify", 9, 1), 10, 11)
    first, second = wait(0, 1, 20, True), wait(1, 2, 21, False)
    assert judge_notifies([first, second, notify]) == ""
    assert "lost" in judge_notifies([wait(0, 1, 20, False), second, notify])
    assert "excess" in judge_notifies([first, wait(1, 2, 21, True), notify])
    assert "lost" in judge_notifies([wait(0, 1, 5, False), second, notify])
    died = Timed(NotifyOp("die", 0), 5, None)
    gone = wait(0, 1, None, False)
    assert judge_notifies([gone, died, wait(1, 2, 21, True), notify]) == ""
    assert "lost" in judge_notifies([gone, died, second, notify])
    assert judge_notifies([gone, died._replace(call_ns=12), second, notify]) == ""
