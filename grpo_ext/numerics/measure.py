"""Sample completions as a recipe's run would, and score them as each pass of the run would.

The completions are also scored in other layouts and with float32 weights. The run is started as
usual and ended before its first step, so that the model has the wrappers, dtypes and device of
training. Everything runs in a single process, without sharding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from grpo_ext.bench.measure import ISOLATED, alternating_reward, free_memory
from grpo_ext.numerics.distances import Distance, by_position, by_probability, distance
from grpo_ext.numerics.edges import Edges, compare_sets
from grpo_ext.numerics.passes import CUTS, ONE_ROW, Passes
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.scoring.layout import attention_of
from grpo_ext.seams.generate import fast_generation
from grpo_ext.seams.precision import dtype_of_layers
from grpo_ext.step.records import Scored
from grpo_ext.train import make_trainer

if TYPE_CHECKING:
    from grpo_ext.objective.sampling import SamplingParams
    from grpo_ext.trainer import GRPOExtTrainer

SAMPLER = "sampler against the trainer's step"
SAMPLER_BEFORE = "sampler against the pass before a step"
STEP = "the run's step, with gradient"
FLOAT32 = "float32 copy against the trainer's step"
STAGES = len(CUTS) + 8  # maximum number of calls of `begin`
# settings of a second trainer, whose model has the same weights in float32
IN_FLOAT32: dict[str, Any] = {
    "dtype": "float32",
    "bf16": False,
    "fp16": False,
    "use_vllm": False,
    "sampler": None,
    "behaviour_policy": "decoupled",
    "use_transformers_continuous_batching": False,
}


class Measured(Exception):
    """Raised to end a run once its measurement is complete."""


class AtTrainBegin(TrainerCallback):
    """Callback that calls a function when training begins, then ends the run by raising `Measured`.

    Args:
        work: the function to call; the trainer has prepared its model by then.
    """

    def __init__(self, work: Callable[[], None]):
        self.work = work

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.work()
        raise Measured


@dataclass(frozen=True)
class Comparison:
    """A comparison of two ways to compute the log-probs of the same tokens."""

    part: str  # what is compared with the trainer: "sampler", "trainer" itself, or "float32"
    name: str
    distance: Distance | None  # `None` if it was not measured, or no token was compared
    reason: str = ""  # why it was not measured; empty if it was
    # the distances for parts of the tokens; empty except for the sampler
    by_position: dict[str, Distance | None] = field(default_factory=dict)
    by_probability: dict[str, Distance | None] = field(default_factory=dict)

    @property
    def exceeded(self) -> list[str]:
        """The names of the figures above their limits; empty if the distance was not measured."""
        return self.distance.exceeded if self.distance else []


@dataclass
class Measurement:
    """The results of all comparisons for a recipe on this machine."""

    weights: str = ""  # the dtype of the weights in the policy's layers
    autocast: str = ""  # the dtype of mixed precision, such as "bf16", or "no"
    attention: str = ""  # transformers' name of the attention implementation
    device: str = ""
    sampler: str = ""
    separate_engine: bool = False
    returns_kept_tokens: bool = False
    # whether TRL can cast the head to float32; it cannot with an adapter and tied embeddings
    can_cast_head: bool = True
    completions: int = 0
    tokens: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    edges: Edges | None = None  # `None` without top_k, top_p and min_p

    @property
    def half(self) -> bool:
        """Whether the policy computes in half precision (bfloat16 or float16)."""
        return self.autocast != "no" or self.weights in ("bfloat16", "float16")

    @property
    def within(self) -> bool:
        """Whether all measured figures are within their limits."""
        apart = any(comparison.exceeded for comparison in self.comparisons)
        beyond = self.edges is not None and self.edges.exceeded
        return not (apart or beyond)


def measure(recipe: Recipe, num_completions: int, begin: Callable[[str], None]) -> Measurement:
    """Measure how far log-probs differ between a recipe's sampler, its trainer and a float32 copy.

    The comparison with a float32 copy has a `reason` instead of a distance if the policy computes
    in float32, its weights are quantized, or GPU memory runs out. The progress bars of transformers
    are disabled for the rest of the process.

    Args:
        recipe: the recipe, loaded for a single process.
        num_completions: the number of completions to sample, rounded up to whole groups.
        begin: called with the name of each stage when the stage begins.

    Raises:
        ValueError: if the recipe is invalid with the settings of the measurement, TRL itself
            generates, the sampler's log-probs are not recorded, or nothing was sampled.
    """
    disable_progress_bar()
    begin("loading the model")
    found = Measurement()
    with TemporaryDirectory() as folder:
        trainer = silent_trainer(recipe, folder, {})
        work = AtStart(trainer, found, num_completions, begin)
        run_until_begun(trainer, work)
        is_quantized = bool(getattr(trainer.model, "is_quantized", False))
    del trainer
    begin(FLOAT32)
    reason = ""
    if not found.half:
        reason = "the policy computes in float32 itself"
    elif is_quantized:
        reason = "the weights are quantized"
    if reason:
        found.comparisons.append(Comparison("float32", FLOAT32, None, reason))
        return found
    weights = work.weights_on_cpu
    table = work.table.on("cpu")
    params = work.passes.scorer.params
    step = work.step.cpu()
    del work
    free_memory()
    try:
        copy = in_float32(recipe, weights, table, params)
    except torch.OutOfMemoryError:
        reason = "the float32 copy does not fit into memory"
        found.comparisons.append(Comparison("float32", FLOAT32, None, reason))
        return found
    apart = distance(copy, step, table.loss_mask)
    found.comparisons.append(Comparison("float32", FLOAT32, apart))
    return found


class AtStart:
    """Callable that takes all measurements when training begins, except that of the float32 copy.

    Pass it to `run_until_begun`. The attributes below are set by the call.

    Args:
        trainer: the recipe's trainer.
        found: the measurement to add the results to.
        num_completions: the number of completions to sample, rounded up to whole groups.
        begin: called with the name of each stage when the stage begins.
    """

    table: Scored  # the sampled completions
    passes: Passes
    step: Tensor  # (B, T), the log-probs of the run's step
    weights_on_cpu: dict[str, Tensor]  # set only if the policy computes in half precision

    def __init__(
        self,
        trainer: GRPOExtTrainer,
        found: Measurement,
        num_completions: int,
        begin: Callable[[str], None],
    ):
        self.trainer = trainer
        self.found = found
        self.num_completions = num_completions
        self.begin = begin

    def __call__(self) -> None:
        trainer = self.trainer
        trainer.model.train()
        self.begin("sampling")
        self.table = sampled_table(trainer, self.num_completions)
        self.passes = Passes(trainer, self.table)
        self._describe()
        self.begin(STEP)
        self.step = self.passes.of_the_step()
        self._compare_sampler()
        self._compare_trainer()
        if self.passes.scorer.params.truncated:
            self.begin("kept sets")
            self._compare_kept()
        if self.found.half:
            self.weights_on_cpu = weights_of(trainer)

    def _describe(self) -> None:
        trainer = self.trainer
        found = self.found
        # the head may be in float32 (`cast_lm_head_to_fp32`)
        found.weights = str(dtype_of_layers(trainer.model)).removeprefix("torch.")
        found.autocast = str(trainer.accelerator.mixed_precision)
        found.attention = attention_of(trainer.accelerator.unwrap_model(trainer.model))
        found.device = str(trainer.accelerator.device)
        found.sampler = trainer.sampler.describe()
        found.separate_engine = trainer.sampler.abilities.separate_engine
        found.returns_kept_tokens = self.table.kept is not None
        is_tied = trainer.model.config.get_text_config().tie_word_embeddings
        found.can_cast_head = not (isinstance(trainer.model, PeftModel) and is_tied)
        found.completions = len(self.table)
        found.tokens = int(self.table.loss_mask.sum())

    def _add(self, part: str, name: str, first: Tensor, other: Tensor) -> None:
        apart = distance(first, other, self.table.loss_mask)
        self.found.comparisons.append(Comparison(part, name, apart))

    def _compare_sampler(self) -> None:
        """Compare the sampler, the step, and the pass before the step with each other.

        Each pair of them is compared, and the comparisons are added to `found`.
        """
        table = self.table
        sampled = table.sampling_per_token_logps
        assert sampled is not None  # `sampled_table` raises an error otherwise
        mask = table.loss_mask.bool() & ~sampled.isnan()
        lengths = table.completion_mask.sum(1)
        comparison = Comparison(
            "sampler",
            SAMPLER,
            distance(sampled, self.step, mask),
            by_position=by_position(sampled, self.step, mask, lengths),
            by_probability=by_probability(sampled, self.step, mask),
        )
        self.found.comparisons.append(comparison)
        self.begin(SAMPLER_BEFORE)
        before = self.passes.before_the_step()
        apart = distance(sampled, before, mask)
        self.found.comparisons.append(Comparison("sampler", SAMPLER_BEFORE, apart))
        self._add("trainer", "the pass before a step against the step", before, self.step)

    def _compare_trainer(self) -> None:
        """Compare the trainer's passes with each other, and add the comparisons to `found`.

        Each layout and the step are compared with passes of one row each. The step is also compared
        with a step that turns gradient checkpointing on if it is off, or off if it is on. A layout
        that the trainer would not use for this model gets a reason instead of a distance.
        """
        self.begin(ONE_ROW)
        one_row = self.passes.one_row()
        for cut in CUTS:
            self.begin(cut.name)
            try:
                self._add("trainer", cut.name, one_row, self.passes.cut(cut))
            except ValueError as error:
                skipped = Comparison("trainer", cut.name, None, str(error))
                self.found.comparisons.append(skipped)
        self._add("trainer", STEP, one_row, self.step)
        other = not self.passes.checkpoints
        name = f"the step {'with' if other else 'without'} gradient checkpointing"
        self.begin(name)
        self._add("trainer", name, self.step, self.passes.of_the_step(checkpointing=other))

    def _compare_kept(self) -> None:
        """Set `found.edges` to a comparison of the sampler's and the trainer's kept sets."""
        drawn, others = self.passes.own_kept()
        assert drawn.kept is not None and others.kept is not None  # sampling is truncated
        table = self.table
        lengths = table.completion_mask.sum(1).tolist()
        tokens = []
        places = []
        for row, length in enumerate(lengths):
            tokens.append(table.completion_ids[row, :length])
            places.append(table.loss_mask[row, :length].nonzero().flatten())
        self.found.edges = compare_sets(table.kept, drawn.kept, others.kept, tokens, places)


def sampled_table(trainer: GRPOExtTrainer, num_completions: int) -> Scored:
    """Sample completions for the run's first rows, with the run's own sampler.

    Args:
        trainer: a trainer whose training has begun.
        num_completions: the number of completions, rounded up to whole groups. If the dataset does
            not have enough rows, fewer are sampled.

    Raises:
        ValueError: if TRL itself generates, the sampler's log-probs are not recorded, or nothing
            was sampled.
    """
    if trainer.parts.generations.by_trl or trainer.as_trl:
        raise ValueError(
            "TRL itself generates in this run, so the sampler's log-probs are not recorded. Set "
            "`loss_normalization: step`, remove `tools`, and use a model without a multimodal "
            "processor."
        )
    group = trainer.num_generations
    count = -(-num_completions // group) * group
    rows: list[dict[str, Any]] = []
    for batch in trainer.get_train_dataloader():
        rows += batch
        if len(rows) >= count:
            break
    rows = rows[: min(count, len(rows) // group * group)]
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    fast = trainer.args.fast_generate and not trainer.use_vllm
    with fast_generation(model) if fast else nullcontext():
        table = trainer.parts.generations.complete(rows)
    sampled = table.sampling_per_token_logps
    if sampled is None or not (table.loss_mask.bool() & ~sampled.isnan()).any():
        raise ValueError(
            f"The sampler ({trainer.sampler.name}) returned no log-probs, so there is nothing to "
            "compare. With transformers, set `logprob_policy: sampling` and "
            "`use_transformers_continuous_batching: false`."
        )
    return table


def in_float32(
    recipe: Recipe, weights: dict[str, Tensor], table: Scored, params: SamplingParams
) -> Tensor:
    """Score completions with a float32 copy of the policy; return the log-probs (B, T) on the CPU.

    Args:
        recipe: the recipe of the run, from which a second trainer is created.
        weights: the policy's weights, by name.
        table: the completions, on the CPU.
        params: the sampling parameters to score with.

    Raises:
        torch.OutOfMemoryError: if GPU memory runs out.
    """
    logps: list[Tensor] = []

    def score() -> None:
        trainer.accelerator.unwrap_model(trainer.model).load_state_dict(weights)
        trainer.model.train()
        passes = Passes(trainer, table.on(trainer.accelerator.device))
        passes.scorer = replace(passes.scorer, params=params)
        logps.append(passes.before_the_step().cpu())

    with TemporaryDirectory() as folder:
        trainer = silent_trainer(recipe, folder, IN_FLOAT32)
        run_until_begun(trainer, score)
    return logps[0]


def weights_of(trainer: GRPOExtTrainer) -> dict[str, Tensor]:
    """Return copies of the policy's weights on the CPU, by name."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: weight.detach().cpu().clone() for name, weight in model.state_dict().items()}


def silent_trainer(recipe: Recipe, folder: str, settings: dict[str, Any]) -> GRPOExtTrainer:
    """Create a recipe's trainer with other settings, without output on stdout.

    The trainer does not save, evaluate or report. Its rewards are replaced by a function that needs
    no data, because the measurement uses no rewards.

    Args:
        recipe: the recipe; it does not change.
        folder: the output folder, the only one that the trainer writes to.
        settings: values that override those of the recipe.
    """
    isolated = {**ISOLATED, "sampler_check_share": 1.0}
    values = {**recipe.flat, **isolated, **settings, "output_dir": folder}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        return make_trainer(load_recipe(None, values, 1), rewards=[alternating_reward])


def run_until_begun(trainer: GRPOExtTrainer, work: Callable[[], None]) -> None:
    """Begin a run, call `work()`, and end the run before its first step.

    Nothing is printed on stdout.
    """
    trainer.add_callback(AtTrainBegin(work))
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), suppress(Measured):
        trainer.train()
