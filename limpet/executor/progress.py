"""`executor.progress()`: a bar of the calls that are done, which draws itself anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ExecutorProgress(Progress):
    """A context manager; rich's Progress with one task, whose state is `counts()`."""

    def __init__(self, counts: Callable[[], dict[str, int]], console: Console | None) -> None:
        self.counts = counts
        self.bar: Any = None
        super().__init__(
            TextColumn("calls"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self.bar = self.add_task("calls", total=None, state="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Called by rich for each refresh."""
        if self.bar is not None:
            now = self.counts()
            state = f"{now['workers']} workers"
            if now["died"]:
                state += f", {now['died']} died"
            self.update(self.bar, total=now["calls"], completed=now["done"], state=state)
        return super().get_renderables()
