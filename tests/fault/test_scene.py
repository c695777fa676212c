"""The matrix demands of a survivor that no client is blocked."""

from __future__ import annotations

import time

import pytest

from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.testbed import within

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_who_is_blocked_is_found_though_a_destructor_ran_when_the_time_was_over() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.2)

    def work() -> None:
        Slow()
        time.sleep(5)

    with pytest.raises(Broken, match="a client was blocked"), within(0.1, "a client"):
        work()
