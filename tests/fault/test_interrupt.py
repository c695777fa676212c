import os
import select
import signal
from collections.abc import Iterator

import pytest

from limpet.fault.inject.interrupt import SIGNALS, Interrupt, Interrupted, ended_by_signals


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """As if the tests were not run by nohup."""
    before = signal.getsignal(signal.SIGHUP)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_interrupt_is_a_flag_and_wakes_a_waiting_loop(number: signal.Signals) -> None:
    with Interrupt() as interrupt:
        interrupt.check()
        assert not select.select([interrupt.fd], [], [], 0)[0]
        os.kill(os.getpid(), number)
        assert select.select([interrupt.fd], [], [], 60)[0]
        with pytest.raises(Interrupted, match=number.name) as raised:
            interrupt.check()
    assert raised.value.signal is number


def test_interrupt_raises_at_the_second_ctrl_c() -> None:
    with Interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupt_puts_everything_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with Interrupt():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(wakeup) == wakeup


def test_interrupt_leaves_ignored_signals_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            interrupt.check()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_end_the_body_and_its_clean_up_is_done(number: signal.Signals) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    done = []

    def body() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            done.append("clean-up")

    with pytest.raises(Interrupted, match=number.name), ended_by_signals():
        body()
    assert done == ["clean-up"]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_ignored_signals_do_not_end_the_body() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_comes_while_a_destructor_runs_ends_the_body_at_its_next_look() -> None:
    class Struck:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    went_on = []

    def body(looks: bool) -> None:
        with ended_by_signals() as check:
            Struck()
            if looks:
                check()
            went_on.append(looks)

    for looks in (True, False):
        with pytest.raises(Interrupted, match="SIGTERM"):
            body(looks)
    assert went_on == [False]
