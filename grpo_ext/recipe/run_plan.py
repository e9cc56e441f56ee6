"""Plan a run before it starts: prompts, completions, steps, checkpoints and evaluations.

The arithmetic follows TRL's `RepeatSampler`, transformers' training loop
(`Trainer.set_initial_training_values`, `DefaultFlowCallback`) and accelerate's data loader; a test
compares it with training runs.
"""

import math
from dataclasses import dataclass

from grpo_ext.common.run_time import counted
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.typed_values import Values


@dataclass(frozen=True)
class Plan:
    """The plan of a run, in numbers; those that depend on `rows` are `None` for a stream."""

    batch: Batch  # sizes of a generation and of an optimizer step
    rows: int | None  # training rows
    eval_rows: int | None  # held-out rows; `None` if there are none or the number is unknown
    generations_per_epoch: int | None
    steps_per_epoch: int | None
    # rows per epoch that do not fill a generation; shuffling drops different rows each epoch
    rows_dropped: int | None
    epochs: float | None  # passes over the rows
    steps: int  # optimizer steps
    generations: int
    warmup_steps: int  # steps during which the learning rate rises
    # the steps after which a checkpoint is saved; `None` if only the best evaluations save one
    checkpoints: tuple[int, ...] | None
    checkpoints_kept: int | None  # how many stay on disk (`save_total_limit`); `None` for all
    evaluated: tuple[int, ...]  # the steps after which the run evaluates; 0 is before the first
    eval_completions: int | None  # completions per evaluation; `None` if unknown
    max_completion_length: int | None  # maximum tokens of a completion; `None` if unlimited
    most_slots: int = (
        1  # maximum slots for a prompt in a generation; a slot has `num_generations` completions
    )

    @property
    def evaluations(self) -> int:
        """The number of evaluations on the held-out rows."""
        return len(self.evaluated)

    @property
    def prompts(self) -> int:
        """The number of prompts in all generations.

        A repeated prompt counts each time. If `most_slots` is above 1, a prompt counts once for
        each of its slots.
        """
        return self.generations * self.batch.prompts

    @property
    def completions(self) -> int:
        """The number of completions in all generations of the run, excluding evaluations."""
        return self.generations * self.batch.completions

    @property
    def eval_remark(self) -> str | None:
        """A remark that the evaluations together generate more completions than training.

        It is `None` if they do not, or if the number of their completions is unknown.
        """
        if self.eval_completions is None:
            return None
        completions = self.evaluations * self.eval_completions
        if completions <= self.completions:
            return None
        return (
            f"the evaluations of the run ({self.evaluations:,}) generate {completions:,} "
            f"completions in total, more than its training ({self.completions:,}). For fewer, "
            "lower max_eval_samples, or raise eval_steps with `eval_strategy: steps`."
        )

    @property
    def token_budget(self) -> int | None:
        """The maximum number of tokens sampled in training; `None` if there is no limit."""
        return (
            None
            if self.max_completion_length is None
            else self.completions * self.max_completion_length
        )


@dataclass(frozen=True)
class Epoch:
    """The generations, micro-batches and optimizer steps in one pass over the training rows."""

    generations: int
    micro_batches: int
    steps: int


def epoch_of(rows: int, batch: Batch) -> Epoch:
    """Count the generations, micro-batches and optimizer steps of an epoch over `rows` rows.

    Rows that do not fill a generation are left out.

    Raises:
        ValueError: if there are too few rows for one generation.
    """
    generations = rows // batch.prompts
    if generations == 0:
        raise ValueError(too_few_rows(rows, batch))
    micro_batches = generations * batch.passes
    steps = math.ceil(micro_batches / batch.gradient_accumulation_steps)
    return Epoch(generations, micro_batches, steps)


def make_plan(
    v: Values, num_processes: int, rows: int | None, eval_rows: int | None = None
) -> Plan:
    """Return the plan of a recipe.

    Args:
        v: the values of a checked recipe (`Recipe.flat`).
        num_processes: the number of training processes.
        rows: the number of training rows; `None` for a stream, which needs `max_steps`.
        eval_rows: the number of held-out rows; `None` if unknown.

    Raises:
        ValueError: if the training rows do not fill a generation.
    """
    batch = batch_of(v, num_processes)
    steps = v.max_steps
    epoch: Epoch | None = None
    epochs: float | None = None
    rows_dropped: int | None = None
    if rows is None:
        generations = math.ceil(steps * batch.gradient_accumulation_steps / batch.passes)
    else:
        epoch = epoch_of(rows, batch)
        if steps <= 0:
            steps = math.ceil(v.num_train_epochs * epoch.steps)
        whole_epochs, last_steps = divmod(steps, epoch.steps)
        last_micro_batches = min(
            epoch.micro_batches, last_steps * batch.gradient_accumulation_steps
        )
        epochs = whole_epochs + last_micro_batches / epoch.micro_batches
        generations = whole_epochs * epoch.generations
        generations += math.ceil(last_micro_batches / batch.passes)
        rows_dropped = rows - epoch.generations * batch.prompts
    checkpoints: tuple[int, ...] | None = None
    if v.save_strategy != "best":
        checkpoints = tuple(_moments(v.save_strategy, v.save_steps, steps, epoch))
    eval_completions: int | None = None
    if eval_rows is not None and v.eval_strategy != "no":
        eval_completions = eval_rows * _samples_per_eval_row(v)
    return Plan(
        batch=batch,
        rows=rows,
        eval_rows=eval_rows,
        generations_per_epoch=None if epoch is None else epoch.generations,
        steps_per_epoch=None if epoch is None else epoch.steps,
        rows_dropped=rows_dropped,
        epochs=epochs,
        steps=steps,
        generations=generations,
        warmup_steps=_in_steps(v.warmup_steps, steps),
        checkpoints=checkpoints,
        checkpoints_kept=v.save_total_limit,
        evaluated=tuple(_evaluated(v, steps, epoch)),
        eval_completions=eval_completions,
        max_completion_length=v.max_completion_length,
        most_slots=v.max_slots_per_prompt,
    )


def too_few_rows(rows: int, batch: Batch) -> str:
    """Return the error message for training rows that do not fill a generation.

    With so few rows, TRL would not train a single step.
    """
    return (
        f"{counted(rows, 'training row')} cannot fill a generation of {batch.prompts} prompts "
        f"({batch.completions} completions, {batch.num_generations} per prompt). Use at least "
        f"{batch.prompts} rows, or a smaller generation: lower generation_batch_size if it is set, "
        "otherwise per_device_train_batch_size or steps_per_generation (by default "
        "gradient_accumulation_steps)."
    )


def _samples_per_eval_row(v: Values) -> int:
    if v.eval_temperature is not None:
        return v.eval_num_samples
    return v.num_generations_eval or v.num_generations


def _in_steps(interval: float, steps: int) -> int:
    """Convert an interval to a number of steps; an interval below 1 is a share of all steps.

    transformers does the same in `TrainerState.compute_steps` and `get_warmup_steps`.
    """
    return math.ceil(steps * interval) if interval < 1 else int(interval)


def _moments(strategy: str, interval: float, steps: int, epoch: Epoch | None) -> list[int]:
    """Return the steps after which a run saves or evaluates; the last step of the run is included.

    Args:
        strategy: `save_strategy` or `eval_strategy`. The result is empty unless the strategy is
            `steps` or `epoch`.
        interval: for `steps`, the interval in steps or, if below 1, as a share of all steps.
        steps: the number of steps in the run.
        epoch: the counts for one epoch; `None` for a stream, in which the whole run is one epoch.
    """
    if strategy == "steps":
        every = _in_steps(interval, steps)
    elif strategy == "epoch":
        every = steps if epoch is None else epoch.steps
    else:
        return []
    return sorted({*range(every, steps + 1, every), steps})


def _evaluated(v: Values, steps: int, epoch: Epoch | None) -> list[int]:
    if v.eval_strategy == "no":
        return []
    moments = _moments(v.eval_strategy, v.eval_steps or v.logging_steps, steps, epoch)
    elapsed: list[float] = [*moments]
    if v.eval_strategy == "epoch":  # `eval_delay` is then in epochs, too
        accumulation = v.gradient_accumulation_steps
        length = steps if epoch is None else epoch.steps
        micro_batches = steps * accumulation if epoch is None else epoch.micro_batches
        elapsed = [
            passed + min(1.0, (end - passed * length) * accumulation / micro_batches)
            for passed, end in enumerate(moments)
        ]
    evaluated = [0] if v.eval_on_start and not v.resume_from_checkpoint else []
    for moment, passed in zip(moments, elapsed, strict=True):
        if passed >= v.eval_delay:
            evaluated.append(moment)
    return evaluated
