"""Measure short runs of a recipe: as it is written, and the training phase with other settings.

A single process trains on the completions of one process, without sharding. A model whose weights
are not on this machine, but whose shape is known, gets random weights, and the lengths of
completions are drawn at random.
"""

from __future__ import annotations

import gc
import os
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from transformers.utils.logging import disable_progress_bar

from grpo_ext.bench.random_model import has_weights, make_random_model, with_random_completions
from grpo_ext.bench.replay import Replay, recorded_generation
from grpo_ext.preflight.forecast import make_forecast
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import longest_completion
from grpo_ext.train import make_trainer

if TYPE_CHECKING:
    from grpo_ext.trainer import GRPOExtTrainer

Settings = dict[str, Any]  # values of recipe keys

GENERATIONS = 4  # generations of the recipe as it is written; the first is a warm-up
STEPS = 3  # steps of a run with other settings; the first is a warm-up
# most tokens, prompts included, of a step with other settings
MAX_TOKENS = {"cpu": 32_768, "cuda": 131_072}
RANDOM_COMPLETION_LENGTH = 128  # tokens per completion of a model with random weights
TRAINING_PHASES = ("time/train", "time/scoring", "time/optimizer")
PHASES = (*TRAINING_PHASES, "time/generation", "time/rewards", "time/sync")
OTHER_FIGURES = (
    "throughput/tokens_per_second",
    "throughput/share_of_rate",
    "memory/peak_gib",
    "completions/mean_length",
    "sampling/generation_time",
    "frac_reward_zero_std",
)
# Nothing is written, evaluated or reported, and nothing else runs during training.
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
# All recorded completions are trained on once, whatever produced them.
ONE_PASS: Settings = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
    "use_vllm": False,
    "sampler": None,
    "behaviour_policy": "decoupled",
    "environment": None,
    "group_filter": "off",
    "curriculum": "none",
    "reward_workers": 0,
    "max_steps": STEPS,
}


@dataclass(frozen=True)
class Measurement:
    """The measured training phase of one optimizer step."""

    seconds: float
    tokens_per_second: float  # prompts included
    share: float | None  # of the device's rate for matrix products
    peak_gib: float


class Bench:
    """Measures one recipe. Call `as_it_stands` before the other methods.

    Args:
        config: the recipe's file or name.
        overrides: further keys and values, as on the command line.
    """

    def __init__(self, config: str, overrides: list[str]):
        disable_progress_bar()
        self.recipe = load_recipe(config, overrides, 1)
        self.forecast = make_forecast(self.recipe, 1)
        self.batch = self.forecast.plan.batch
        self.random_weights = not has_weights(self.recipe.flat["model_name_or_path"])

    def as_it_stands(self) -> dict[str, float]:
        """Run the recipe for a few generations, and keep the completions of the last one.

        Returns:
            The mean seconds per optimizer step of each phase, and the medians of `OTHER_FIGURES`.
        """
        steps = max(1, self.batch.passes // self.batch.gradient_accumulation_steps)
        settings: Settings = {"max_steps": GENERATIONS * steps}
        if self.random_weights:
            settings["max_completion_length"] = RANDOM_COMPLETION_LENGTH
        with TemporaryDirectory() as folder:
            trainer = self._make_trainer(folder, settings)
            logs = train_silently(trainer)
        slices = trainer.generation
        assert slices is not None, "a run of several steps generates"
        self.completions = recorded_generation(slices)
        if self.random_weights:
            limit = self.recipe.flat["max_completion_length"]
            self.completions = with_random_completions(self.completions, limit)
        self.replay = Replay(self.completions, trainer.sampler)
        del trainer
        free_memory()
        table = pd.DataFrame(logs[steps:])  # without the first generation
        phases = table.filter(items=PHASES).fillna(0.0).mean()
        medians = table.filter(items=OTHER_FIGURES).median()
        return {**phases.to_dict(), **medians.to_dict()}

    @property
    def num_completions(self) -> int:
        """Completions per step of `training_phase`, in whole groups.

        As many as in a step of the recipe or as `MAX_TOKENS` allows, whichever is fewer, but at
        least one group.
        """
        device = "cuda" if torch.cuda.is_available() else "cpu"
        affordable = MAX_TOKENS[device] / mean(self._lengths())
        group_size = self.batch.num_generations
        groups = int(min(self.batch.completions_per_step, affordable)) // group_size
        return max(1, groups) * group_size

    @property
    def sequence_lengths(self) -> list[int]:
        """Number of tokens, prompt included, of each completion that `training_phase` trains on."""
        return self._lengths()[: self.num_completions]

    def _lengths(self) -> list[int]:
        pairs = zip(self.completions.prompt_ids, self.completions.completion_ids, strict=True)
        return [len(prompt) + len(completion) for prompt, completion in pairs]

    def training_phase(self, settings: Settings) -> Measurement | None:
        """Train on the recorded completions with other settings.

        Rewards alternate between 0 and 1, so that every group has signal.

        Returns:
            The fastest step, or `None` if GPU memory runs out.

        Raises:
            ValueError: if the model does not support the settings.
        """
        settings = {
            "per_device_train_batch_size": self.num_completions,
            **ONE_PASS,
            **settings,
        }
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
                logs = train_silently(trainer)[1:]
            except torch.OutOfMemoryError:
                return None
            finally:
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

    def longest_completion(self) -> int | None:
        """Estimate the longest completion, in tokens, that fits on this GPU.

        Returns `None` without a GPU, or if the model's size is not known.
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
        """Make the recipe's trainer with other settings and arguments; it writes to `folder`."""
        values = {**self.recipe.flat, **ISOLATED, **settings, "output_dir": folder}
        recipe = load_recipe(None, values, 1)
        if self.random_weights:
            arguments["model"], arguments["processing_class"] = make_random_model(recipe)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            return make_trainer(recipe, **arguments)


def train_silently(trainer: GRPOExtTrainer) -> list[dict[str, float]]:
    """Train without printing anything, and return the logs of the steps."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        trainer.train()
    return [log for log in trainer.state.log_history if "loss" in log]


def training_seconds(log: dict[str, float]) -> float:
    """Return the seconds of a step's training phase."""
    return sum(log.get(phase, 0.0) for phase in TRAINING_PHASES)


def alternating_reward(completions: list[str], **columns: object) -> list[float]:
    """Return 0 and 1 in turn, so that the rewards of every group differ."""
    return [float(i % 2) for i in range(len(completions))]


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
