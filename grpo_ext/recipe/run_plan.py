"""The plan of a run before it starts: prompts, completions, steps, checkpoints and evaluations.

The arithmetic is that of TRL's `RepeatSampler`, transformers' loop
(`Trainer.set_initial_training_values`, `DefaultFlowCallback`) and accelerate's data loader; a test
trains and compares.
"""

import math
from dataclasses import dataclass

from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.rules import Values


@dataclass(frozen=True)
class Plan:
    """The numbers of a run; numbers of an epoch are `None` for a stream."""

    batch: Batch  # sizes of a generation and of an optimizer step
    rows: int | None  # training rows
    eval_rows: int | None  # held-out rows; `None` if there are none or the number is unknown
    generations_per_epoch: int | None
    steps_per_epoch: int | None
    # rows of an epoch that do not fill a generation; shuffling drops other rows in each epoch
    rows_dropped: int | None
    epochs: float | None  # passes over the rows
    steps: int  # optimizer steps
    generations: int
    warmup_steps: int  # steps over which the learning rate rises
    # the steps after which one is saved; `None`: after the best evaluations
    checkpoints: tuple[int, ...] | None
    checkpoints_kept: int | None  # how many stay on disk (`save_total_limit`); `None`: all
    evaluations: int  # how often the held-out rows are evaluated
    eval_completions: int | None  # of one evaluation; `None` if unknown
    max_completion_length: int | None  # tokens of the longest completion; `None`: unbounded
    most_slots: int = (
        1  # of a generation that a prompt may take, each of `num_generations` completions
    )

    @property
    def prompts(self) -> int:
        """Prompts of all generations of the run, with repetitions; with `most_slots` above 1 their
        slots.
        """
        return self.generations * self.batch.prompts

    @property
    def completions(self) -> int:
        """Completions of all generations of the run, without evaluations."""
        return self.generations * self.batch.completions

    @property
    def token_budget(self) -> int | None:
        """The most tokens that the run can sample; `None` if completions have no limit."""
        return (
            None
            if self.max_completion_length is None
            else self.completions * self.max_completion_length
        )


def make_plan(
    v: Values, num_processes: int, rows: int | None, eval_rows: int | None = None
) -> Plan:
    """Return the plan of a recipe's valid values (`Recipe.flat`); `ValueError` if the training rows
    do not fill a generation.

    `rows` is `None` for a stream, which needs `max_steps`; `eval_rows` is `None` if unknown.
    """
    batch = batch_of(v, num_processes)
    accumulation = batch.gradient_accumulation_steps
    per_epoch = micro = steps_per_epoch = None
    if rows is not None:
        per_epoch = rows // batch.prompts
        if per_epoch == 0:
            raise ValueError(too_few_rows(rows, batch))
        micro = per_epoch * batch.passes  # micro-batches of an epoch
        steps_per_epoch = math.ceil(micro / accumulation)
    steps = (
        v["max_steps"] if v["max_steps"] > 0 else math.ceil(v["num_train_epochs"] * steps_per_epoch)
    )
    whole, rest = divmod(steps, steps_per_epoch) if rows is not None else (0, steps)
    saving = v["save_strategy"]
    ours = v["eval_temperature"] is not None
    samples = v["eval_num_samples"] if ours else v["num_generations_eval"] or batch.num_generations
    last = rest * accumulation if rows is None else min(micro, rest * accumulation)
    return Plan(
        batch=batch,
        rows=rows,
        eval_rows=eval_rows,
        generations_per_epoch=per_epoch,
        steps_per_epoch=steps_per_epoch,
        rows_dropped=None if rows is None else rows - (per_epoch or 0) * batch.prompts,
        epochs=None if rows is None else whole + last / micro,
        steps=steps,
        generations=whole * (per_epoch or 0) + math.ceil(last / batch.passes),
        warmup_steps=_every(v["warmup_steps"], steps),
        checkpoints=None
        if saving == "best"
        else tuple(_moments(saving, v["save_steps"], steps, steps_per_epoch)),
        checkpoints_kept=v["save_total_limit"],
        evaluations=_evaluations(v, steps, steps_per_epoch, micro),
        eval_completions=None
        if eval_rows is None or v["eval_strategy"] == "no"
        else eval_rows * samples,
        max_completion_length=v["max_completion_length"],
        most_slots=v["max_slots_per_prompt"],
    )


def too_few_rows(rows: int, batch: Batch) -> str:
    """Return the message for rows that do not fill a generation, with which TRL would end without a
    step.
    """
    each = f"({batch.completions} completions, {batch.num_generations} a prompt)"
    how = (
        "lower per_device_train_batch_size, generation_batch_size or steps_per_generation, or "
        "raise num_generations."
    )
    words = f"Bring at least {batch.prompts} rows, or make the generation smaller: {how}"
    return f"{rows} training rows make no generation of {batch.prompts} prompts {each}. {words}"


def _every(interval: float, steps: int) -> int:
    """Return an interval in steps; below 1 it is a share of all (`TrainerState.compute_steps`,
    `get_warmup_steps`).
    """
    return math.ceil(steps * interval) if interval < 1 else int(interval)


def _moments(strategy: str, interval: float, steps: int, steps_per_epoch: int | None) -> list[int]:
    """Return the steps after which a strategy acts, with the last step; a stream counts as one
    epoch.
    """
    if strategy not in ("steps", "epoch"):
        return []
    every = _every(interval, steps) if strategy == "steps" else steps_per_epoch or steps
    return sorted({*range(every, steps + 1, every), steps})


def _evaluations(v: Values, steps: int, steps_per_epoch: int | None, micro: int | None) -> int:
    strategy = v["eval_strategy"]
    accumulation = v["gradient_accumulation_steps"]
    at_start = strategy != "no" and v["eval_on_start"] and not v["resume_from_checkpoint"]
    reached: list[float] = [
        *_moments(strategy, v["eval_steps"] or v["logging_steps"], steps, steps_per_epoch)
    ]
    if strategy == "epoch":  # `eval_delay` also counts epochs
        length = steps_per_epoch or steps
        whole = micro or steps * accumulation
        reached = [
            i + min(1.0, (end - i * length) * accumulation / whole) for i, end in enumerate(reached)
        ]
    return int(at_start) + sum(moment >= v["eval_delay"] for moment in reached)
