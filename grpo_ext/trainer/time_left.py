"""Estimate the time left in a run, from the steps, evaluations and saves measured so far."""

import math
from collections.abc import Callable, Sized
from contextlib import suppress

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grpo_ext.common.run_time import BESIDE, RunTime, duration
from grpo_ext.recipe.arguments import argument_values
from grpo_ext.recipe.run_plan import make_plan
from grpo_ext.trainer.phases import Phases
from grpo_ext.trainer.port import Trainer


class TimeLeft(TrainerCallback):
    """Callback that prints the time left, and provides it as the metric `progress/hours_left`.

    The line is printed after the first few steps, and again when an evaluation or a save has been
    measured for the first time. The steps of the first generation are not measured, because they
    are slower.
    """

    def __init__(self, trainer: Trainer, phases: Phases, write: Callable[[str], None] = tqdm.write):
        self.trainer = trainer
        self.phases = phases
        self.write = write  # prints a line, above a progress bar if there is one
        self.evaluated: tuple[int, ...] = ()  # the steps after which the run evaluates
        self.saved: tuple[int, ...] = ()  # the steps after which the run saves
        self.unmeasured = 1  # number of steps of the first generation, which are slower
        self._first = 0  # the step at which the run starts or resumes
        self._begun = 0.0  # `_now` when measuring began
        self._step_seconds: float | None = None
        self._measured: set[str] = set()  # the phases of `BESIDE` in the last printed line

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        trainer = self.trainer
        rows = trainer.train_dataset
        num_rows = len(rows) if isinstance(rows, Sized) else None
        with suppress(ValueError):  # if there are too few rows, training itself reports it
            values = argument_values(trainer.args, set())
            plan = make_plan(values, trainer.accelerator.num_processes, num_rows)
            batch = plan.batch
            self.evaluated = plan.evaluated
            self.saved = plan.checkpoints or ()
            self.unmeasured = math.ceil(batch.passes / batch.gradient_accumulation_steps)
        self._first = state.global_step
        self._step_seconds = None
        self._measured = set()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Measure the mean step duration, and print the time left after the first few steps."""
        steps = state.global_step - self._first - self.unmeasured
        enough = max(2, self.unmeasured)
        if steps == 0:
            self._begun = self._now()
        elif steps >= enough:
            self._step_seconds = (self._now() - self._begun) / steps
            if steps == enough:
                self._print(state, state.global_step)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Print the time left again if an evaluation or a save was measured for the first time."""
        if self._step_seconds is not None and self._kinds() > self._measured:
            self._print(state, state.global_step + 1)

    def figures(self) -> dict[str, float]:
        """Return the metric `progress/hours_left`, or an empty dict until it is known."""
        state = self.trainer.state
        left = self.left(state, state.global_step)
        return {} if left is None else {"progress/hours_left": left.seconds / 3600}

    def left(self, state: TrainerState, since: int) -> RunTime | None:
        """Return the steps, evaluations and saves still to come, and how long each takes.

        The result is `None` until enough steps have been measured.

        Args:
            state: the state of the run.
            since: the first step whose evaluation and save are still to come.
        """
        if self._step_seconds is None:
            return None
        means: dict[str, float] = {}
        for name, lasted in self.phases.lasted.items():
            means[name] = sum(lasted) / len(lasted)
        return RunTime(
            state.max_steps - state.global_step,
            sum(step >= since for step in self.evaluated),
            sum(step >= since for step in self.saved),
            self._step_seconds,
            means.get("evaluation"),
            means.get("checkpoint"),
        )

    def _print(self, state: TrainerState, since: int) -> None:
        self._measured = self._kinds()
        left = self.left(state, since)
        if left is not None and left.steps and state.is_world_process_zero:
            self.write(f"about {duration(left.seconds)} left: {left.describe()}")

    def _kinds(self) -> set[str]:
        return {name for name in BESIDE if self.phases.lasted.get(name)}

    def _now(self) -> float:
        """Return the current time in seconds, minus all time spent on evaluations and saves."""
        return self.phases.now() - sum(map(sum, self.phases.lasted.values()))
