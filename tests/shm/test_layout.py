"""The table of words in docs/memory.md is that of the code, no two words overlap, and no layout
changes without the number of the protocol."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import xxhash

import limpet
from limpet.shm.endpoint import layout, slots
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    EVENT_RING,
    EVENT_SIZE,
    EVENTS,
    OFFSET_MASK,
    SLOT_SIZE,
    NodeLayout,
    catalogue_address,
    catalogue_entries,
    control_size,
)
from limpet.shm.parameters import NODES_MAX, PoolParameters
from limpet.shm.release import PROTOCOL

PROTOCOLS: Final = {4: "c48cbb55817ea4be"}
"""For each number of the protocol, the digest of its layouts (`digest`)."""
LAYOUTS: Final = (
    "layout", "words", "slots", "states", "superblock", "epoch", "raw/parameters",
    "in_place_parameters",
)  # fmt: skip
"""How the paths of modules end that say where words are, and what their bits mean."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "memory.md"


class Row(NamedTuple):
    where: str
    offset: int
    size: int
    name: str
    writer: str
    module: str


def rows() -> list[Row]:
    """The table's rows; -1 for what differs from pool to pool."""
    section = DOCUMENT.read_text().partition("## The words in memory\n")[2].partition("\n## ")[0]
    found: list[Row] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (line.startswith("|") and cells[1].isdigit()) or cells[1:2] == [""]:
            where = cells[0] or found[-1].where
            offset, size = (int(cell) if cell else -1 for cell in cells[1:3])
            found.append(Row(where, offset, size, cells[3], cells[4], cells[5].strip("`")))
    return found


def of(where: str) -> list[Row]:
    return [row for row in rows() if row.where == where]


def test_every_word_has_a_writer_and_a_module() -> None:
    for row in rows():
        assert row.writer
        assert (DOCUMENT.parents[1] / row.module).exists(), row.module


def test_words_of_the_control_segment_are_where_the_table_says() -> None:
    constants = {
        name: value & OFFSET_MASK
        for name, value in vars(layout).items()
        if name.isupper() and isinstance(value, int) and value >> 40 == layout.CONTROL_NODE
    }
    assert {row.name.strip("`"): row.offset for row in of("control segment")} == constants


def test_words_of_a_client_slot_are_where_the_table_says() -> None:
    table = {row.name.strip("`"): row.offset for row in of("client slot")}
    assert table.pop("state") == 0
    assert {name: getattr(slots, name) for name in table} == table
    assert len(set(table.values())) == len(table)


def test_words_do_not_overlap() -> None:
    for where, end in (("control segment", CLIENT_SLOTS & OFFSET_MASK), ("client slot", SLOT_SIZE)):
        found = [row for row in of(where) if row.size > 0]
        for row, after in zip(found, [*found[1:], None], strict=True):
            assert row.size % 8 == row.offset % 8 == 0
            assert row.offset + row.size <= (after.offset if after is not None else end), row


def test_sizes_are_those_of_the_code() -> None:
    sizes = {row.name.strip("`"): row.size for row in rows()}
    assert sizes["superblock"] == layout.SUPERBLOCK_SIZE
    assert (
        sizes["CLIENT_JOURNAL"] == slots.CLIENT_JOURNAL_PAIRS.size == 16 * slots.CLIENT_JOURNAL_SIZE
    )
    assert sizes["EVENT_RING"] == EVENTS * EVENT_SIZE
    assert sizes["NODE_STATES"] >= 8 * (NODES_MAX + 1)
    assert sizes["an entry"] == layout.CATALOGUE_ENTRY_SIZE
    assert (EVENT_RING & OFFSET_MASK) + sizes["EVENT_RING"] == CLIENT_SLOTS & OFFSET_MASK


def test_regions_of_a_segment_follow_each_other() -> None:
    parameters = PoolParameters(nodes=2, node_size=4 << 20)
    of_node = NodeLayout.of(parameters)
    order = ("region_directory", "block_table", "bitmaps", "blocks")
    starts = [getattr(of_node, name) for name in order]
    assert starts == sorted(starts)
    assert starts[0] == layout.SUPERBLOCK_SIZE
    assert of_node.block_table == starts[0] + of_node.region_entries * layout.REGION_ENTRY_SIZE
    assert of_node.blocks + of_node.block_count * of_node.block_size <= of_node.node_size
    assert {row.name.strip("`").split("`")[-1] for row in of("memory node")} >= set(order)
    catalogue = catalogue_address(64) & OFFSET_MASK
    assert catalogue >= (CLIENT_SLOTS & OFFSET_MASK) + 64 * SLOT_SIZE
    whole = catalogue + catalogue_entries(8 << 20) * layout.CATALOGUE_ENTRY_SIZE
    assert control_size(64, 8 << 20) >= whole


def layout_files() -> list[Path]:
    """The sources of limpet.shm and limpet.stores that have layouts."""
    root = Path(limpet.__file__).parent
    return [
        path
        for folder in ("shm", "stores")
        for path in sorted((root / folder).rglob("*.py"))
        if path.with_suffix("").as_posix().endswith(LAYOUTS)
    ]


def constants_of(source: str) -> list[str]:
    """The numbers and formats that a module defines, as it writes them; no texts."""
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        names = node.targets if isinstance(node, ast.Assign) else [node.target]
        name, value = ast.unparse(names[0]), ast.unparse(node.value)
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if name.strip("_").isupper() and name != "FIELDS" and not is_text:
            found.append(f"{name} = {value}")
    return sorted(found)


def digest(sources: Mapping[str, str]) -> str:
    """Of what `constants_of` finds in these sources, by names, and of the table of words."""
    found = [f"{name} {each}" for name in sorted(sources) for each in constants_of(sources[name])]
    table = [f"{row.where} {row.offset} {row.size} {row.name}" for row in rows()]
    return xxhash.xxh64_hexdigest("\n".join(found + table).encode())


def sources() -> dict[str, str]:
    return {f"{path.parent.name}/{path.name}": path.read_text() for path in layout_files()}


def require_number(found: str) -> None:
    known = PROTOCOLS.get(PROTOCOL)
    assert found == known, (
        f"a layout changed: raise PROTOCOL in shm/release.py (it is {PROTOCOL}) if that number was "
        f"ever in a release or in use, and note the digest {found!r} here"
    )


def test_no_layout_changes_without_the_number_of_the_protocol() -> None:
    require_number(digest(sources()))


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("endpoint/slots.py", "NAME: Final = 120", "NAME: Final = 128"),
        (
            "transactions/layout.py",
            "VERSION_MASK: Final = (1 << 62) - 1",
            "VERSION_MASK: Final = 7",
        ),
    ],
)
def test_a_word_that_moves_is_noticed(file: str, before: str, after: str) -> None:
    changed = sources()
    assert before in changed[file]
    changed[file] = changed[file].replace(before, after)
    with pytest.raises(AssertionError, match="raise PROTOCOL"):
        require_number(digest(changed))
