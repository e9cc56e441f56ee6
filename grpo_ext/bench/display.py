"""Show a benchmark's results as they arrive, its current measurement, and the seconds left."""

from __future__ import annotations

import sys
from typing import Protocol, Self

from grpo_ext.bench.budget import Budget


class Display(Protocol):
    """Protocol for objects that show the progress and the results of a benchmark."""

    def result(self, line: str) -> None:
        """Show a line of the results."""

    def begin(self, task: str) -> None:
        """Show that a measurement begins; `task` is its name."""


class Lines:
    """Prints results to stdout, and each measurement's name and the seconds left to stderr.

    Args:
        budget: the time for all measurements.
        results: whether to print results; if `False`, `result` does nothing.
    """

    def __init__(self, budget: Budget, results: bool):
        self.budget = budget
        self.results = results

    def result(self, line: str) -> None:
        if self.results:
            print(line, flush=True)

    def begin(self, task: str) -> None:
        print(f"{self.budget.left:.0f} s left: {task}", file=sys.stderr, flush=True)


class Bar:
    """Context manager that prints results in a terminal, above a bar that shows the elapsed time.

    The bar is shown within the context, and removed at its end.

    Args:
        budget: the time for all measurements.
    """

    def __init__(self, budget: Budget):
        from rich.console import RenderableType
        from rich.progress import Progress, ProgressColumn, Task, TextColumn
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        class Spent(ProgressColumn):
            def render(self, task: Task) -> RenderableType:
                return ProgressBar(total=budget.seconds, completed=budget.spent, width=24)

        class Left(ProgressColumn):
            def render(self, task: Task) -> RenderableType:
                return Text(f"{budget.left:.0f} s left")

        description = TextColumn("{task.description}", markup=False)
        # once per second, because a refresh takes time from what is measured
        self._progress = Progress(
            Spent(), Left(), description, refresh_per_second=1, transient=True
        )
        self._task = self._progress.add_task("")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def result(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, task: str) -> None:
        self._progress.update(self._task, description=task, refresh=True)
