"""No function of the hot path calls Python where it did not; see kit/python_lines.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import python_lines
from kit.compiled_constants import compiled_modules

import limpet

needs_c = pytest.mark.skipif(
    limpet.build != "compiled" or not python_lines.compiled_modules()["limpet.shm.alloc.heap"]
    .with_suffix(".c").exists(),
    reason="reads the C that Cython makes in place",
)  # fmt: skip
ANEW = "if it has to be, `python -m kit.python_lines` in tests/ writes the table anew"


def kept() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(python_lines.TABLE.read_text())
    return found


@needs_c
def test_hot_functions_call_python_on_no_more_lines() -> None:
    before = kept()
    more = [
        f"{module}: {name} calls Python on {count} lines, not {before[module][name]}"
        for module, counts in python_lines.table().items()
        for name, count in counts.items()
        if count > before.get(module, {}).get(name, count)
    ]
    assert more == [], ANEW


@needs_c
@pytest.mark.exhaustive("a table that others write anew with the functions that they add")
def test_table_of_hot_functions_is_complete() -> None:
    before, now = kept(), python_lines.table()
    assert {module: set(counts) for module, counts in before.items()} == {
        module: set(counts) for module, counts in now.items()
    }, ANEW


def test_lookup_of_a_constant_without_a_type_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    line = '  /* "limpet/module.py":{}\n * text\n */\n'
    source.with_suffix(".c").write_text(
        "static u64 __pyx_f_6limpet_6module_5Class_get(struct it *__pyx_v_self, u64 __pyx_v_n) {\n"
        + line.format(7)
        + "  __pyx_t_1 = __pyx_v_self->endpoint->load(__pyx_v_n);\n  Py_INCREF(__pyx_t_1);\n"
        + line.format(8)
        + "  __Pyx_GetModuleGlobalName(__pyx_t_2, __pyx_n_s_POINTER);\n"
        + "  __pyx_t_3 = PyNumber_Add(__pyx_t_1, __pyx_t_2);\n"
        + "  /* function exit code */\n  __Pyx_AddTraceback(1);\n  PyErr_Clear_it();\n}\n"
    )
    assert python_lines.python_lines("limpet.module", source) == {"Class.get": 1}
    assert python_lines.hot("limpet.module", "Class._get_once")
    assert not python_lines.hot("limpet.module", "Class.check")


def test_names_of_functions_are_told_from_c() -> None:
    assert set(compiled_modules()) > set(python_lines.EVERYTHING)
    name = python_lines._demangled(
        "6limpet_3shm_5alloc_4heap_4Heap__used_bits", "limpet.shm.alloc.heap"
    )
    assert name == "Heap._used_bits"
