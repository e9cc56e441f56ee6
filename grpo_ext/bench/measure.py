"""Measure short runs of a recipe as it is written, and its training phase with other settings.

Everything runs in a single process, without sharding, with at most as many completions as one
process of the real run would have. If the model's weights are not on this machine but its shape is
known, the model gets random weights, and the lengths of completions are drawn at random.
"""

from __future__ import annotations

import gc
import math
import os
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from grpo_ext.bench.budget import Budget, BudgetSpent
from grpo_ext.bench.random_model import has_weights, make_random_model, with_random_completions
from grpo_ext.bench.replay import Replay, recorded_generation
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.memory import longest_completion, memory_estimate
from grpo_ext.train import make_trainer

if TYPE_CHECKING:
    from grpo_ext.step.records import Generation
    from grpo_ext.trainer import GRPOExtTrainer

Settings = dict[str, Any]  # values of recipe keys

GENERATIONS = 4  # maximum generations with the recipe as it is written; the first is a warm-up
RECIPE_SHARE = 1 / 3  # share of the time limit for these generations
STEPS = 3  # steps of a run with other settings, of which the fastest counts
FEWEST_STEPS = 2  # steps of such a run if time is short
CANDIDATES = 8  # number of runs with other settings that should fit into the budget
WORTH_ENLARGING = 1.5  # a larger step must have at least this many times as many completions
MEMORY_SHARE = 0.5  # maximum share of the available memory for activations, as estimated
# maximum number of tokens, prompts included, in a step with other settings
MAX_TOKENS = {"cpu": 32_768, "cuda": 131_072}
RANDOM_COMPLETION_LENGTH = 128  # tokens per completion of a model with random weights
TRAINING_PHASES = ("time/train", "time/scoring", "time/optimizer")
GENERATION_PHASES = ("time/generation", "time/environment")
PHASES = (*TRAINING_PHASES, *GENERATION_PHASES, "time/rewards", "time/sync")
OTHER_FIGURES = (
    "throughput/tokens_per_second",
    "throughput/share_of_rate",
    "memory/peak_gib",
    "completions/mean_length",
    "sampling/generation_time",
    "frac_reward_zero_std",
)
# With these settings, nothing is saved, evaluated or reported, and nothing else runs in training.
ISOLATED: Settings = {
    "report_to": "none",
    "save_strategy": "no",
    "eval_strategy": "no",
    "logging_strategy": "steps",
    "logging_steps": 1,
    "log_samples": 0,
    "resume": "never",
    "overlap": "off",
    "partial_rollouts": 0,
    "disable_tqdm": True,
    "push_to_hub": False,
    "health_action": "none",
}
# With these settings, all recorded completions are trained on once, whatever produced them.
ONE_PASS: Settings = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
    "use_vllm": False,
    "sampler": None,
    "behaviour_policy": "decoupled",
    "group_filter": "off",
    "curriculum": "none",
    "reward_workers": 0,
}


@dataclass(frozen=True)
class Measurement:
    """The measured training phase of one optimizer step."""

    seconds: float
    tokens_per_second: float  # prompts included
    # share of the device's rate of matrix multiplications; `None` if it was not logged
    share: float | None
    peak_gib: float


class Bench:
    """Measures one recipe. Call `as_it_stands` first, because other methods use its results.

    The constructor disables the progress bars of transformers.

    Args:
        recipe: the recipe, loaded for a single process.
        budget: the time for all measurements; unlimited by default.

    Attributes:
        device: "cpu" or "cuda".
        figures: the results of `as_it_stands`; empty until its first run has ended.
        sizes: the batch sizes that `figures` was measured with.
        warm: whether `figures` leaves out the first generation.
        layout: the layout that the trainer chose for the recipe.
        gradient_checkpointing: whether the trainer used gradient checkpointing for the recipe.
        num_completions: the number of completions per step in `training_phase`, a multiple of the
            group size.
        completions: the completions of the last generation that `as_it_stands` ran.
        replay: the sampler that returns these completions.
    """

    completions: Generation
    replay: Replay

    def __init__(self, recipe: Recipe, budget: Budget | None = None):
        disable_progress_bar()
        self.budget = budget or Budget()
        self.recipe = recipe
        self.forecast = make_forecast(self.recipe, 1)
        self.batch = self.forecast.plan.batch
        self.random_weights = not has_weights(self.recipe.flat["model_name_or_path"])
        on_gpu = torch.cuda.is_available() and not self.recipe.flat["use_cpu"]
        self.device = "cuda" if on_gpu else "cpu"
        self.figures: dict[str, float] = {}
        self.sizes = self.batch
        self.warm = False
        self.layout = "chunks"
        self.gradient_checkpointing = False
        self.num_completions = 0
        self._steps = STEPS
        self._skips = False  # whether the recipe leaves out completions without gradient
        self._seconds_to_start = 0.0  # time to create the last trainer

    def as_it_stands(self) -> dict[str, float]:
        """Run the recipe for a few generations, and record the completions of the last one.

        If the budget is limited and a generation has several groups, a first run generates a single
        group, to find out how many groups fit into `RECIPE_SHARE` of the time. The figures of this
        first run are returned if at most one group fits, or if the time ends during the run
        with more groups.

        Returns:
            The mean seconds per optimizer step of each phase, by the names in `PHASES`, and the
            medians of `OTHER_FIGURES`, as far as the run logged them.

        Raises:
            ValueError: if the budget ends during the first run, or if the recipe cannot be run.
            KeyboardInterrupt: after Ctrl-C.
        """
        groups = self.batch.prompts
        if math.isinf(self.budget.seconds):
            self._run_recipe(groups, GENERATIONS)
        else:
            reserve = (1 - RECIPE_SHARE) * self.budget.left
            try:
                self._run_recipe(1, GENERATIONS if groups == 1 else 1, reserve)
            except BudgetSpent:
                raise ValueError(
                    f"The time limit of {self.budget.seconds / 60:g} min was reached during a step "
                    "with one group, so nothing was measured. Run `grpo-ext bench` with more "
                    "--minutes, or lower num_generations."
                ) from None
            affordable = min(groups, self._affordable_groups(self.budget.left - reserve))
            if affordable > 1:
                with suppress(BudgetSpent):  # the metrics of the run with one group are kept
                    self._run_recipe(affordable, GENERATIONS, reserve, reserve)
        self._choose_size(self._seconds_per_completion())
        return self.figures

    def _affordable_groups(self, seconds: float) -> int:
        """Return how many groups a generation may have if two generations may take `seconds`.

        Returns 0 if not even one group fits. On a GPU, several groups are assumed to be generated
        in the time of one.
        """
        phases = [self.figures.get(name, 0.0) for name in PHASES]
        generation = sum(self.figures.get(name, 0.0) for name in GENERATION_PHASES)
        steps = max(1, self.sizes.passes // self.sizes.gradient_accumulation_steps)
        training = max(sum(phases) - generation, 1e-6)
        available = (seconds - self._seconds_to_start) / (2 * steps)
        groups = available / (generation + training)
        if self.device != "cpu":
            groups = (available - generation) / training
        return max(0, int(groups))

    def _run_recipe(
        self, groups: int, generations: int, reserve: float = 0.0, pass_reserve: float = 0.0
    ) -> None:
        """Run the recipe for up to `generations` generations, and store the results as attributes.

        Sets `figures`, `sizes`, `warm`, `layout`, `gradient_checkpointing`, `completions` and
        `replay`.

        Args:
            groups: the number of groups per generation. If it is smaller than in the recipe, each
                optimizer step trains on a whole generation.
            generations: the maximum number of generations.
            reserve: the seconds of the budget to leave unused; the run stops after a step if
                another one would use some of them.
            pass_reserve: the run fails before a forward pass if at most this many seconds of the
                budget are left.

        Raises:
            BudgetSpent: if at most `pass_reserve` seconds are left before a forward pass.
            ValueError: if the recipe cannot be used, or GPU memory runs out during training.
        """
        sizes = self.batch
        settings: Settings = {}
        if groups < sizes.prompts:
            sizes = with_groups(sizes, groups)
            settings |= batch_settings(sizes)
            if self.forecast.checkpointing is not None:  # as chosen for the whole step
                settings["gradient_checkpointing"] = self.forecast.checkpointing.on
        steps = max(1, sizes.passes // sizes.gradient_accumulation_steps)
        settings["max_steps"] = generations * steps
        if self.random_weights:
            settings["max_completion_length"] = RANDOM_COMPLETION_LENGTH
        with TemporaryDirectory() as folder:
            trainer = self._make_trainer(folder, settings)
            try:
                train_silently(trainer, TimeLimit(self.budget, reserve, pass_reserve))
            except BudgetSpent:
                del trainer
                free_memory()
                raise
            except torch.OutOfMemoryError:
                raise ValueError(
                    "The recipe ran out of GPU memory. Lower "
                    "per_device_train_batch_size, num_generations or max_completion_length."
                ) from None
        slices = trainer.generation
        assert slices is not None, "a run of at least one step generates"
        self.completions = recorded_generation(slices)
        if self.random_weights:
            limit = self.recipe.flat["max_completion_length"]
            self.completions = with_random_completions(self.completions, limit)
        self.replay = Replay(self.completions, trainer.sampler)
        self.layout = trainer.parts.scorer.layout.kind
        self.gradient_checkpointing = bool(trainer.args.gradient_checkpointing)
        self._skips = trainer.parts.cut_rule.skips
        logs = step_logs(trainer)
        del trainer
        free_memory()
        self.sizes = sizes
        self.warm = len(logs) > steps
        table = pd.DataFrame(logs[steps:] if self.warm else logs)
        phases = table.filter(items=PHASES).fillna(0.0).mean()
        medians = table.filter(items=OTHER_FIGURES).median()
        self.figures = {**phases.to_dict(), **medians.to_dict()}

    def _seconds_per_completion(self) -> float:
        """Return how many seconds the training phase of `as_it_stands` took per completion.

        Completions that the trainer skips because they have no gradient are not counted.
        """
        trained = float(self.sizes.completions_per_step)
        if self._skips:
            trained *= 1 - self.figures.get("frac_reward_zero_std", 0.0)
        return training_seconds(self.figures) / max(1.0, trained)

    def _choose_size(self, per_completion: float) -> None:
        """Set `num_completions` and the number of steps in a run of `training_phase`.

        A step has the recipe's number of completions, in whole groups, limited by the number of
        recorded completions, by `MAX_TOKENS`, and by the time for `CANDIDATES` runs. It has at
        least one group. A run has `STEPS` steps, or `FEWEST_STEPS` if there is too little time.

        Args:
            per_completion: the expected seconds per completion.
        """
        lengths = self._lengths()
        group_size = self.batch.num_generations
        affordable = MAX_TOKENS[self.device] / mean(lengths)
        most = int(min(self.batch.completions_per_step, len(lengths), affordable))
        most_groups = max(1, most // group_size)
        per_group = max(1e-6, group_size * per_completion)
        seconds = self.budget.left / CANDIDATES - self._seconds_to_start
        for steps in (STEPS, FEWEST_STEPS):
            groups = max(1, int(min(most_groups, seconds / (steps * per_group))))
            self._steps = steps
            if groups == most_groups and seconds > steps * groups * per_group:
                break
        self.num_completions = groups * group_size

    def enlarge(self, measurement: Measurement) -> bool:
        """Increase `num_completions` if a measurement shows that there is time for more.

        The previous number may be too small: it was chosen from steps of the recipe, and steps in
        which few groups have signal say little about the seconds per completion.

        Args:
            measurement: a measurement with the current `num_completions`.

        Returns:
            Whether `num_completions` has grown. It grows by a factor of at least `WORTH_ENLARGING`,
            or not at all.
        """
        before = (self.num_completions, self._steps)
        self._choose_size(measurement.seconds / self.num_completions)
        if self.num_completions >= WORTH_ENLARGING * before[0]:
            return True
        self.num_completions, self._steps = before
        return False

    @property
    def sequence_lengths(self) -> list[int]:
        """The number of tokens, prompt and completion together, in each row of `training_phase`."""
        return self._lengths()[: self.num_completions]

    def _lengths(self) -> list[int]:
        pairs = zip(self.completions.prompt_ids, self.completions.completion_ids, strict=True)
        return [len(prompt) + len(completion) for prompt, completion in pairs]

    def training_phase(self, settings: Settings) -> Measurement | None:
        """Train on the recorded completions with other settings, and measure the training phase.

        Rewards alternate between 0 and 1, so that every group has signal. If the budget ends after
        at least `FEWEST_STEPS` steps, the completed steps are measured.

        Args:
            settings: recipe keys to change.

        Returns:
            The figures of the fastest step, with the peak memory of all steps; `None` if GPU memory
            runs out.

        Raises:
            ValueError: if the recipe cannot be used with the settings.
            BudgetSpent: if the budget ends before `FEWEST_STEPS` steps are completed.
        """
        settings = {
            "per_device_train_batch_size": self.num_completions,
            **ONE_PASS,
            "max_steps": self._steps,
            **settings,
        }
        logs = []
        with TemporaryDirectory() as folder:
            trainer = self._make_trainer(
                folder,
                settings,
                sampler=self.replay,
                rewards=[alternating_reward],
            )
            with suppress(OSError):
                # From here on, Linux measures the peak memory of this process anew.
                Path("/proc/self/clear_refs").write_text("5")
            try:
                train_silently(trainer, TimeLimit(self.budget, steps=FEWEST_STEPS))
            except torch.OutOfMemoryError:
                return None
            except BudgetSpent:
                if len(step_logs(trainer)) < FEWEST_STEPS:
                    raise
            finally:
                logs = step_logs(trainer)
                del trainer
                free_memory()
        fastest = min(logs, key=training_seconds)
        seconds = training_seconds(fastest)
        return Measurement(
            seconds=seconds,
            tokens_per_second=sum(self.sequence_lengths) / seconds,
            share=fastest.get("throughput/share_of_rate"),
            peak_gib=max(log["memory/peak_gib"] for log in logs),
        )

    def fits_without_checkpointing(self) -> bool:
        """Return whether one micro-batch without gradient checkpointing should fit into memory.

        The micro-batch has `num_completions` completions. On a CPU, its estimated activations must
        take less than `MEMORY_SHARE` of the available memory, because a process that fills the
        memory is killed. The result is `True` if the model's size is unknown, and always on a GPU,
        where `training_phase` can run out of memory without harm.
        """
        if self.device != "cpu" or self.forecast.size is None:
            return True
        values = self.recipe.flat.replaced(
            gradient_checkpointing=False, max_completion_length=max(self.sequence_lengths)
        )
        batch = replace(self.batch, per_device_train_batch_size=self.num_completions)
        activations = memory_estimate(self.forecast.size, values, batch)["activations"]
        return activations < MEMORY_SHARE * psutil.virtual_memory().available

    def longest_completion(self) -> int | None:
        """Estimate the longest completion, in tokens, that fits on this GPU; 0 if none fits.

        The estimate assumes one completion per micro-batch and gradient checkpointing. The result
        is `None` if there is no GPU, or if the model's size is unknown.
        """
        if not torch.cuda.is_available() or self.forecast.size is None:
            return None
        return longest_completion(
            self.forecast.size,
            self.recipe.flat,
            self.batch,
            room=torch.cuda.get_device_properties(0).total_memory,
            prompt=round(self.forecast.prompt_tokens or 0),
        )

    def _make_trainer(self, folder: str, settings: Settings, **arguments: Any) -> GRPOExtTrainer:
        """Return a trainer for the recipe with other settings.

        Args:
            folder: the `output_dir` of the trainer.
            settings: recipe keys to change.
            arguments: additional arguments for `make_trainer`. With a `sampler`, the recipe's
                environments are removed.

        Raises:
            ValueError: if the recipe cannot be used with the settings.
        """
        begun = self.budget.clock()
        values = {**self.recipe.flat, **ISOLATED, **settings, "output_dir": folder}
        if "gradient_checkpointing" in settings:
            # transformers' new name for the option would take precedence
            values.pop("activation_checkpointing", None)
        recipe = load_recipe(None, values, 1)
        if "sampler" in arguments:  # completions are replayed, so nothing is played
            recipe.training.environment = None
            recipe.training.environments = None
        if self.random_weights:
            model, tokenizer = make_random_model(recipe, self.device)
            arguments |= {"model": model, "processing_class": tokenizer}
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            trainer = make_trainer(recipe, **arguments)
        self._seconds_to_start = self.budget.clock() - begun
        return trainer


class TimeLimit(TrainerCallback):
    """Trainer callback that ends a run when its time is up.

    The run stops after a step if there is no time for another one. If the time ends within a step,
    the next forward pass raises `BudgetSpent`, provided that `before_pass` is registered as a hook.

    Args:
        budget: the time limit of the benchmark.
        reserve: the run stops after a step if another one would leave fewer than this many seconds
            of the budget.
        pass_reserve: `before_pass` raises `BudgetSpent` if at most this many seconds of the budget
            are left.
        steps: the minimum number of steps before the run may stop between two steps.
    """

    def __init__(
        self, budget: Budget, reserve: float = 0.0, pass_reserve: float = 0.0, steps: int = 1
    ):
        self.budget = budget
        self.reserve = reserve
        self.pass_reserve = pass_reserve
        self.steps = steps
        self._begun = 0.0

    def before_pass(self, module: torch.nn.Module, inputs: object) -> None:
        """Forward pre-hook for the input embedding that ends the run if the time is up.

        Raises:
            BudgetSpent: if at most `pass_reserve` seconds are left.
            KeyboardInterrupt: after Ctrl-C.
        """
        self.budget.check(self.pass_reserve)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begun = self.budget.clock()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        per_step = (self.budget.clock() - self._begun) / state.global_step
        if state.global_step >= self.steps and self.budget.left - self.reserve < per_step:
            control.should_training_stop = True


def train_silently(trainer: GRPOExtTrainer, limit: TimeLimit) -> None:
    """Train until the last step or the time limit, without printing to stdout.

    Raises:
        BudgetSpent: if the time is up before a forward pass.
        KeyboardInterrupt: after Ctrl-C.
        torch.OutOfMemoryError: if GPU memory runs out.
    """
    trainer.add_callback(limit)
    model = trainer.accelerator.unwrap_model(trainer.model)
    hook = model.get_input_embeddings().register_forward_pre_hook(limit.before_pass)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            trainer.train()
    finally:
        hook.remove()


def step_logs(trainer: GRPOExtTrainer) -> list[dict[str, float]]:
    """Return the trainer's logs for the optimizer steps that have ended, oldest first."""
    return [log for log in trainer.state.log_history if "loss" in log]


def with_groups(batch: Batch, groups: int) -> Batch:
    """Return batch sizes with `groups` groups per generation, all of them in one optimizer step.

    The micro-batch is at most as large as in `batch`.
    """
    completions = groups * batch.num_generations
    size = largest_divisor(completions, batch.per_device_train_batch_size)
    return replace(
        batch,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=completions // size,
        steps_per_generation=None,
        generation_batch_size=None,
    )


def batch_settings(batch: Batch) -> Settings:
    """Return the recipe keys that set the batch sizes, with their values in `batch`."""
    keys = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "generation_batch_size",
    )
    return {key: getattr(batch, key) for key in keys}


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`; 1 if `most` is below 1."""
    size = max(1, min(number, most))
    while number % size:
        size -= 1
    return size


def training_seconds(log: dict[str, float]) -> float:
    """Return the time of a step's training phase, in seconds."""
    return sum(log.get(phase, 0.0) for phase in TRAINING_PHASES)


def alternating_reward(completions: list[str], **columns: object) -> list[float]:
    """Return 0 and 1 in turn, so that rewards differ in every group of two or more completions."""
    return [float(i % 2) for i in range(len(completions))]


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
