"""Shared parts of the commands of `limpet bench`: options, progress, interrupts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from limpet.bench.peers.drivers import PEERS_EXTRA
from limpet.fault.inject.interrupt import Interrupted

AGAIN_S: Final = 0.001
"""How long after Python has dropped an exit it is raised again."""
PATH = click.Path(dir_okay=False, writable=True, path_type=pathlib.Path)


class List(click.ParamType):
    """Words with commas between them, each converted, none twice."""

    name = "list"

    def __init__(self, convert: Callable[[str], object]) -> None:
        self.convert_word = convert

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[object, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        try:
            return tuple(dict.fromkeys(self.convert_word(word) for word in words))
        except ValueError as error:
            self.fail(f"{value!r} is not a list such as 1,2: {error}", param, ctx)


def _count(word: str) -> int:
    """A whole number from 1 on; ValueError."""
    count = int(word)
    if count < 1:
        raise ValueError(f"{count} is below 1")
    return count


COUNTS = List(_count)
"""Of processes, keys or bytes."""


def check_files(option: str, png: pathlib.Path | None, *others: pathlib.Path | None) -> None:
    """Refuse files that could not be written, before anything is run."""
    if png is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError(f"{option} needs matplotlib: {PEERS_EXTRA}")
    for path in (png, *others):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"{option}: there is no directory {path.absolute().parent}")


def progress_bar() -> Progress:
    """A bar on stderr, drawn only when it is told to, so that it takes no time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )


@contextlib.contextmanager
def advancing(total: int) -> Iterator[Callable[[str], None]]:
    """With such a bar: a function that makes a step, and shows its text."""
    with progress_bar() as bar:
        task = bar.add_task("", total=total)

        def advance(text: str) -> None:
            bar.update(task, description=text, advance=1, refresh=True)

        yield advance


@contextlib.contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """A SIGTERM leaves the body through every clean-up, which another one does not interrupt.

    Python drops an exception that is raised in a destructor or a callback: then it is raised again,
    a moment later. A forked child ends at once: the clean-up is its parent's.
    """
    ours = os.getpid()
    leaving: list[SystemExit] = []

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != ours:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leaving.append(SystemExit(128 + signal.SIGTERM))
        raise leaving[-1]

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_value in leaving:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, dropped
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        if leaving:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
    if leaving:  # the body was over before it could be raised again
        raise leaving[-1]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt in the body becomes an exit status; processes and pools of the body are gone."""
    try:
        yield
    except Interrupted as error:
        click.echo(str(error), err=True)
        raise SystemExit(128 + error.signal) from error
