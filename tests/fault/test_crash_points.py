"""The registry of crash points agrees with the comments at the steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import limpet
from limpet.fault.matrix.crash_points import CRASH_POINTS, defined, is_shared
from limpet.fault.matrix.fault_profile import FAULT_PROFILES
from limpet.stores.registry import KINDS

ROOT = Path(limpet.__file__).resolve().parent
TAG = re.compile(r"# CRASH\(([a-z-]+)\):")
MODULES = sorted(
    str(path.relative_to(ROOT))
    for part in ("shm", "stores")
    for path in (ROOT / part).rglob("*.py")
)


def tags_of(module: str) -> set[str]:
    return set(TAG.findall((ROOT / module).read_text()))


def test_modules_with_tags_are_registered_with_their_names() -> None:
    tagged = {module: tags_of(module) for module in MODULES}
    assert {module: names for module, names in tagged.items() if names} == CRASH_POINTS


@pytest.mark.parametrize("kind", KINDS)
def test_sources_of_a_kind_have_crash_points_of_its_own(kind: str) -> None:
    """A pattern that no module matches any more would leave them out."""
    own = {name for name, module in defined(kind).items() if not is_shared(module)}
    if kind in FAULT_PROFILES and FAULT_PROFILES[kind].sources:
        assert own


def test_names_that_a_profile_leaves_out_are_registered() -> None:
    """A crash point that is renamed is renamed in the profiles, too."""
    known = frozenset().union(*CRASH_POINTS.values())
    for kind, profile in FAULT_PROFILES.items():
        assert profile.not_met <= known, kind
