"""Memory nodes over a network need the compiled build."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import limpet
from limpet.cli.serve import serve
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.skipif(BUILD != "pure", reason="the compiled build has them")


def test_pure_build_says_that_it_has_no_network() -> None:
    with pytest.raises(limpet.ParameterError, match="compiled build"):
        limpet.open("net://127.0.0.1:7001/demo")
    options = ["demo", "--listen", "127.0.0.1:0", "--secret-file", "none"]
    found = CliRunner().invoke(serve, options)
    assert isinstance(found.exception, limpet.ParameterError)
