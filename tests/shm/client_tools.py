"""Clients in forked children that can be told what to do next, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from limpet.shm.clients.membership import slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.pool import Pool
from limpet.stores.race.parameters import GROUP_SIZE, GROUPS_MIN

LIFETIME_S = 60


def pair_references(pool: Any) -> list[int]:
    """References to the pairs of the pool's small `race` stores, without those to subtables."""
    subtable = pool.heap.size_class(GROUPS_MIN * GROUP_SIZE)
    return [each for each in pool.references().tolist() if each >> 48 & 0xFF != subtable]


class Child:
    """A forked child that runs what it is sent by name, one after the other, and answers."""

    def __init__(self, **actions: Callable[[], Any]) -> None:
        ask, answer = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(LIFETIME_S)
                os.close(ask[1])
                os.close(answer[0])
                self._serve(actions, ask[0], answer[1])
            finally:
                os._exit(0)
        os.close(ask[0])
        os.close(answer[1])
        self._ask, self._answer = ask[1], answer[0]
        self.status: int | None = None

    @staticmethod
    def _serve(actions: dict[str, Callable[[], Any]], ask: int, answer: int) -> None:
        while name := os.read(ask, 100).decode():
            try:
                said = pickle.dumps((True, actions[name]()))
            except Exception as error:
                said = pickle.dumps((False, f"{error!r}\n{traceback.format_exc()}"))
            os.write(answer, said)

    def send(self, name: str) -> None:
        """Have the child run the action."""
        os.write(self._ask, name.encode())

    def answer(self) -> Any:
        """What the action returned; RuntimeError with its traceback when it raised."""
        data = os.read(self._answer, 65536)
        if not data:
            raise EOFError(f"child {self.pid} is gone")
        well, said = pickle.loads(data)
        if not well:
            raise RuntimeError(said)
        return said

    def do(self, name: str) -> Any:
        self.send(name)
        return self.answer()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL it and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> int:
        """Wait for its end; exit code, or minus the signal."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.reap()


@contextlib.contextmanager
def child(**actions: Callable[[], Any]) -> Iterator[Child]:
    """A child; dead and reaped at the end."""
    made = Child(**actions)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def pinned(pool: Pool) -> Iterator[None]:
    """The pool's client is inside an operation."""
    pool.client.enter()
    try:
        yield
    finally:
        pool.client.leave()


def slot_of(ident: int) -> int:
    """The address of the slot of a client id."""
    return slot_address(ident >> INCARNATION_BITS)


def ids(pool: Pool) -> set[int]:
    return {client["client"] for client in pool.clients()}


def churn(pool: Pool, store: Any, size: int = 2000) -> None:
    """Write and delete twice as many bytes as the pool has."""
    for number in range(2 * pool.parameters.nodes * pool.parameters.node_size // size):
        store.put(b"churn", bytes(size))
        if number % 2:
            store.delete(b"churn")


def work(pool: Any, rounds: int = 3) -> None:
    """Real operations: pairs, objects of one and of several blocks, memory given back and taken."""
    store = pool.store("race", name="work", capacity=64)
    for number in range(rounds):
        for size in (10, 3000, 100_000):
            key = b"%d" % size
            store.put(key, bytes([number]) * size)
            assert store.get(key) == bytes([number]) * size
            store.delete(key)
            assert store.get(key) is None
    store.check()
    assert pool.audit()["leaked"] == 0
