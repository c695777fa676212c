"""The shared queue under the standard library's tests of queues.

Of CPython's tests for queues those that are not here do not apply. Of test_queue:
test_shrinking_queue (sets maxsize, which is fixed), FailingQueueTest
(overrides _put and _get), test_references and test_reentrancy (elements are copies), Lifo and
Priority queues. Of _test_multiprocessing: what opens `multiprocessing.Queue` by name
(test_no_import_lock_contention, test_timeout, test_closed_queue_put_get_exceptions), and what a
feeder thread does (test_queue_feeder...): there is none.
"""

from __future__ import annotations

import itertools
import queue
import unittest
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

test_queue = pytest.importorskip("test.test_queue")
_test_multiprocessing = pytest.importorskip("test._test_multiprocessing")

_pool: list[Any] = []
_numbers = itertools.count()


def _queue(maxsize: int = 0) -> Any:
    return _pool[-1].queue(f"q{next(_numbers)}", maxsize or 256)


@pytest.fixture
def standard(pools: Any) -> Iterator[None]:
    _pool.append(pools(node_size="4MiB"))
    yield
    _pool.pop()


@pytest.mark.usefixtures("standard")
@pytest.mark.exhaustive_in_pure("threads of one process take turns", quick=["test_order"])
class TestStandardSimple(test_queue.BaseSimpleQueueTest, unittest.TestCase):
    queue = queue
    type2test = staticmethod(_queue)
    test_references = None


class _Mixin(test_queue.BlockingTestMixin):
    queue = queue


@pytest.mark.usefixtures("standard")
class TestStandardBlocking(_Mixin, unittest.TestCase):
    """Those of BaseQueueTestMixin; it looks for the name of the class."""

    def test_basic(self) -> None:
        q = _queue(test_queue.QUEUE_SIZE)
        test_queue.BaseQueueTestMixin.basic_queue_test(self, Named(q))
        test_queue.BaseQueueTestMixin.basic_queue_test(self, Named(q))

    worker = test_queue.BaseQueueTestMixin.worker
    queue_join_test = test_queue.BaseQueueTestMixin.queue_join_test

    def setUp(self) -> None:
        self.type2test = _queue
        test_queue.BaseQueueTestMixin.setUp(self)

    def test_queue_task_done(self) -> None:
        test_queue.BaseQueueTestMixin.test_queue_task_done(self)

    def test_queue_join(self) -> None:
        test_queue.BaseQueueTestMixin.test_queue_join(self)

    def test_negative_timeout_raises_exception(self) -> None:
        test_queue.BaseQueueTestMixin.test_negative_timeout_raises_exception(self)

    def test_nowait(self) -> None:
        test_queue.BaseQueueTestMixin.test_nowait(self)


class Named:
    """A queue whose class has the name that test_queue looks for."""

    def __init__(self, q: Any) -> None:
        self.q = q

    def __getattr__(self, name: str) -> Any:
        return getattr(self.q, name)


Named.__name__ = "Queue"


@pytest.mark.usefixtures("standard")
class TestStandardProcesses(
    _test_multiprocessing.BaseTestCase, _test_multiprocessing.ProcessesMixin, unittest.TestCase
):
    TYPE: ClassVar[str] = "limpet"

    Queue = JoinableQueue = staticmethod(_queue)
    _tests = _test_multiprocessing._TestQueue
    _test_put = _tests._test_put
    _test_get = _tests._test_get
    _test_fork = _tests._test_fork
    test_put = _tests.test_put
    test_get = _tests.test_get
    test_fork = _tests.test_fork
    test_qsize = _tests.test_qsize
    _test_task_done = _tests._test_task_done
    test_task_done = _tests.test_task_done
