"""`limpet drill ends`, `forks`, `names`: processes that end, fork, or meet others, at each step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

from limpet.cli.faults import drill_url, fault_command, run_faults
from limpet.fault.drill import forks
from limpet.fault.drill import names as drill_names
from limpet.fault.drill.ends import WAYS, Ends
from limpet.fault.drill.engine import SHARE, Result
from limpet.fault.matrix.subjects import SUBJECTS


@fault_command("ends", sorted(SUBJECTS), WAYS, "way")
def ends(subjects: tuple[str, ...], ways: tuple[str, ...], every: bool, as_json: bool) -> None:
    """End processes in the middle of operations: by exec, os._exit, with threads at work.

    A SUBJECT is a kind of store, or a channel; all of them if none is named. Exit status 0 only if
    other clients go on at once each time, no ended client is left in the pool, no memory is leaked,
    and no process is killed that is no client any more.
    """
    share = 0 if every else SHARE
    run_faults(
        "clients that end in an operation",
        [partial(Ends(one, drill_url(), share).run, way) for one in subjects for way in ways],
        as_json,
    )


@fault_command("forks", forks.USES, forks.WAYS, "way", "USE", every="")
def fork(subjects: tuple[str, ...], ways: tuple[str, ...], as_json: bool) -> None:
    """Fork processes while a lock, a computation, a view or the like is theirs.

    A USE is of a store, channel or cache; all of them if none is named. Exit status 0 only if it
    stays its owner's, whether the child ends, unwinds, goes on or uses it, too.
    """
    run_faults(
        "owners that fork",
        [partial(forks.Forks(use, drill_url()).run, way) for use in subjects for way in ways],
        as_json,
    )


@click.option("--backend", "schemes", multiple=True, type=click.Choice(list(drill_names.PLACES)),
              help="Only this one; may be repeated.  [default: all]")  # fmt: skip
@click.option("--on", "url", help="A place of your own, where nothing is: the URL of any backend.")
@fault_command("names", drill_names.ACTS, drill_names.WAYS, "way", "CALL",
               "Every event, not some of them.")  # fmt: skip
def names(
    subjects: tuple[str, ...], ways: tuple[str, ...], schemes: tuple[str, ...], url: str | None,
    every: bool, as_json: bool,
) -> None:  # fmt: skip
    """Let another process act on the same name at each event of a call, or kill the caller there.

    A CALL is create, open, "open or create", destroy or replace; all of them if none is named. Exit
    status 0 only if each call ends, no pool loses a segment to a call that means another one, no
    segment is left without a pool, and the name can be used afterwards.
    """
    given: Any = {"--on": lambda: contextlib.nullcontext(url)} if url else drill_names.PLACES

    def runs() -> Iterator[Callable[[], Result]]:
        for scheme in schemes or given:
            with given[scheme]() as where:
                drill = drill_names.Names(where, 0 if every else SHARE)
                for act in subjects:
                    for way in ways:
                        yield partial(drill.run, act, way)

    run_faults("names", runs(), as_json)
