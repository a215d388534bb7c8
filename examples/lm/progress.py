"""A progress bar on the first process: rich's on a terminal, otherwise a line now and then."""

import importlib.util
import sys
from types import TracebackType
from typing import Self

import jax


class Progress:
    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps, self._done = name, steps, 0
        self._silent = jax.process_index() != 0
        self._bar = None
        if not self._silent and sys.stdout.isatty() and importlib.util.find_spec("rich"):
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            note = TextColumn("loss {task.fields[loss]:.3f}  {task.fields[rate]:,.0f} tokens/s")
            self._bar = Bar(
                TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn()
            )
            self._task = self._bar.add_task(name, total=steps, loss=float("nan"), rate=0.0)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, loss: float, rate: float) -> None:
        self._done += 1
        if self._bar:
            self._bar.update(self._task, advance=1, loss=loss, rate=rate)
        elif not self._silent and (
            self._done == 1 or self._done * 10 // self._steps != (self._done - 1) * 10 // self._steps
        ):
            done = "#" * (self._done * 30 // self._steps)
            print(
                f"{self._name:>8} [{done:<30}] {self._done:>4}/{self._steps}  loss {loss:.3f}  {rate:,.0f} tokens/s",
                flush=True,
            )
