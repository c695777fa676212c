"""The table of channels that are explored: `limpet drill explore` takes the name of a row."""

from __future__ import annotations

from typing import Final

from limpet.fault.explore.sim_channels import ITEM_SIZE, Subject
from limpet.fault.explore.sim_containers import DequeRun, TopicRun
from limpet.fault.explore.sim_holders import ConditionRun, RwLockRun, SemaphoreRun
from limpet.fault.explore.sim_jobs import JobsRun
from limpet.fault.explore.sim_queue import QueueRun
from limpet.stores.channels.condition import Condition
from limpet.stores.channels.deque import Deque
from limpet.stores.channels.holders.rwlock import RwLock
from limpet.stores.channels.holders.semaphore import Semaphore
from limpet.stores.channels.jobs.job_queue import JobQueue
from limpet.stores.channels.queue.shared_queue import SharedQueue
from limpet.stores.channels.topic import Topic

_CODED: Final = {"item_size": ITEM_SIZE, "codec": "bytes"}
CHANNELS: Final = {
    "queue": Subject(SharedQueue, QueueRun, "p p pL g g g", {"maxsize": 2, **_CODED}, 30),
    "deque": Subject(
        Deque, DequeRun, "a a aL b bL p p q q q c l l", {"size": 2, "bounded": False, **_CODED}
    ),
    "topic": Subject(Topic, TopicRun, "p p p pL n o g g g w", {"size": 2, **_CODED}),
    "semaphore": Subject(
        Semaphore, SemaphoreRun, "aw aw at an bt bn s", {"value": 1, "bounded": False}
    ),
    "rwlock": Subject(RwLock, RwLockRun, "sw sw st sn xw xw xt xn dw dn", {"prefer": "writers"}),
    "condition": Subject(Condition, ConditionRun, "w w w 1 1 2 0", {}, 100),
    "jobs": Subject(
        JobQueue,
        JobsRun,
        "p p0 p3 p3 pL pk pk pm pd a a a t n n d o l m",
        {"maxsize": 4, "max_deliveries": 2, "visibility_timeout": 0.0, **_CODED},
    ),
}
"""The name of a channel in programs of its own: `queue` is the one without acks, `jobs` that with
acks. Their words: sim_queue.py, sim_containers.py, sim_holders.py, sim_jobs.py."""
