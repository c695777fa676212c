"""Every counter of fewer than 64 bits lasts for 30 years, or a test goes over its end.

Of the substrate and of channels. The tests are in tests/shm/test_counters_end.py and
test_channel_counters_end.py. (What stores count: test_store_counters_end.py.)
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import limpet
from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, STAYS, WRAPS, Field

YEARS = 30
SECONDS = YEARS * 365.25 * 86_400

MODULES = (
    "shm.endpoint.slots",
    "shm.clients.epoch",
    "shm.endpoint.words",
    "shm.replicas.view",
    "shm.endpoint.states",
    "shm.clients.unique_ids",
    "shm.clients.writer_numbers",
    "stores.channels.layout",
    "stores.channels.holders.layout",
    "stores.channels.lock.ticket_layout",
    "stores.channels.queue.layout",
    "stores.channels.ring.layout",
    "stores.channels.regions.table",
    "stores.channels.barrier.layout",
    "stores.loco.layout",
)
FIELDS: list[Field] = [
    field for name in MODULES for field in importlib.import_module(f"limpet.{name}").FIELDS
]

GOES_OVER_THE_END = {
    "pin: counter": "test_no_pin_is_0_when_its_counter_wraps",
    "client id: incarnation": "test_the_first_slots_incarnation_begins_anew_with_1",
    "block word: stamp": "test_stamps_pass_when_their_epoch_has_and_not_before",
    "block word: mark of a backup": "test_memory_of_groups_is_given_to_others_when_memory_is_full",
    "block word: maker of a tail": "test_spans_are_made_and_recovered_where_the_makers_bits_wrap",
    "leader: number": "test_leaders_numbers_wrap",
    "waiting: count of wakes": "test_the_count_of_wakes_wraps",
    "holders: number of a change": "test_numbers_of_changes_of_holders_wrap",
    "holders: number of the change of a row": "test_numbers_of_changes_of_holders_wrap",
    "ticket lock: round": "test_rounds_of_a_ticket_lock_wrap",
    "ticket lock: life of an owner": (
        "test_a_dead_owners_ticket_that_looks_like_a_living_ones_is_passed_over"
    ),
    "queue: round": "test_rounds_of_a_queue_wrap",
    "queue: tag of a cell": "test_tags_of_cells_wrap",
    "tasks: open": "test_the_count_of_open_elements_stays_at_its_end",
    "tasks: lost": "test_counts_of_lost_elements_and_turns_wrap",
    "tasks: turn": "test_counts_of_lost_elements_and_turns_wrap",
    "barrier: round": "test_rounds_of_a_barrier_wrap",
    "barrier: regroupings of a round": "test_regroupings_of_a_round_wrap",
    "writer number: time when it was taken": "test_the_time_at_which_a_number_was_taken_wraps",
    "kvstore journal: sequence": "test_sequences_of_journals_wrap",
}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_each_field_lasts_or_is_tested_beyond_its_end(field: Field) -> None:
    assert field.why
    assert field.a_second > 0
    assert field.room <= 1 << 64
    if field.end == LASTS:
        assert field.room / field.a_second >= SECONDS
    else:
        assert field.end in (WRAPS, STAYS)
        assert field.name in GOES_OVER_THE_END


def test_no_field_is_listed_twice_and_each_test_is_there() -> None:
    names = [field.name for field in FIELDS]
    assert len(set(names)) == len(names)
    assert {field.name for field in FIELDS if field.end != LASTS} == set(GOES_OVER_THE_END)
    tests = Path(__file__).parent.parent
    sources = "".join(path.read_text() for path in tests.glob("*/test_*.py"))
    for test in GOES_OVER_THE_END.values():
        assert f"def {test}(" in sources


def test_the_table_has_the_fields_of_every_module_that_lists_some() -> None:
    package = Path(limpet.__file__).parent
    listing = {
        path.relative_to(package).with_suffix("").as_posix().replace("/", ".")
        for pattern in ("shm/*/*.py", "stores/channels/**/*.py", "stores/loco/*.py")
        for path in package.glob(pattern)
        if "\nFIELDS: Final" in path.read_text()
    }
    assert listing == set(MODULES)


def test_a_field_that_ends_too_soon_is_noticed() -> None:
    """The known-bad variant: 2^46 numbers, ten million a second, are 81 days."""
    bad = Field("numbers", 1 << 46, A_SECOND_MAX, LASTS, "none")
    with pytest.raises(AssertionError):
        test_each_field_lasts_or_is_tested_beyond_its_end(bad)
