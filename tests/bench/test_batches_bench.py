"""`limpet bench batches` on stores with more keys than a round has."""

from __future__ import annotations

from typing import Final

import pytest

from limpet.bench import batches
from limpet.bench.instructions import MANY, SINGLY

KEYS: Final = 2 * batches.SOME


@pytest.mark.either_build("round trips are the same; thousands of keys take a minute in pure")
def test_a_call_saves_round_trips_of_keys_that_are_drawn() -> None:
    found = list(batches.run(["race"], 2, False, KEYS))
    assert [one.operation for one in found] == list(SINGLY)
    for one in found:
        assert one.many_trips < MANY / 2 < one.single_trips
        assert one.single_us > 0 < one.many_us
        assert one.single_instructions == one.many_instructions == 0


def test_the_table_says_how_many_keys_a_store_has() -> None:
    assert "one key of 8,192" in str(batches.results_table([], KEYS).title)
