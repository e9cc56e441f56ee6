"""Short runs of a recipe with the real trainer: as it stands, and of the training phase alone with other settings.

One process trains on the completions of one process; nothing is sharded. If the model is not here, but its shape is known, it
gets random weights, and the lengths of completions are drawn.
"""

import gc
import math
import os
import random
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, Trainer
from transformers.utils.logging import disable_progress_bar

from grpo_ext.preflight.forecast import Forecast, known_config, make_forecast
from grpo_ext.recipe.load import Recipe, load_recipe
from grpo_ext.recipe.memory import longest_completion
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.records import Generation, Scored
from grpo_ext.step.tables import join
from grpo_ext.tiny.tokenizer import build_tokenizer
from grpo_ext.train import make_trainer

GENERATIONS, STEPS = (
    4,
    3,
)  # of the run as it stands, and of one with other settings; the first of each warms up
MOST_TOKENS = {
    "cpu": 32_768,
    "cuda": 131_072,
}  # of prompts and completions in a step with other settings
MEAN_SHARE = 0.4  # mean length of drawn completions, as a share of max_completion_length
LOG_DEVIATION = 0.43  # standard deviation of the logarithm of drawn lengths: 1 % reach the limit
UNTRAINED_TOKENS = 128  # of the completions that a model with random weights samples
PHASE = ("time/train", "time/scoring", "time/optimizer")
TIMES = (*PHASE, "time/generation", "time/rewards", "time/sync")
OTHERS = (
    "throughput/tokens_per_second", "throughput/share_of_rate", "memory/peak_gib", "completions/mean_length",
    "sampling/generation_time", "frac_reward_zero_std",
)  # fmt: skip
ALONE = {  # what a run writes, evaluates and waits for
    "report_to": "none", "save_strategy": "no", "eval_strategy": "no", "logging_steps": 1, "log_samples": 0, "resume": "never",
    "overlap": "off", "partial_rollouts": 0, "disable_tqdm": True, "logging_strategy": "steps", "push_to_hub": False,
    "health_action": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Seconds per optimizer step of the training phase, and what it made of the device."""

    seconds: float
    tokens_per_second: float  # of prompts and completions
    share: float | None  # of the rate of matrix products
    peak_gib: float


class Replay(Sampler):
    """Returns the same completions for each generation: the first that were recorded."""

    name, tokenizes = "recorded completions", True

    def __init__(self, recorded: Generation, like: Sampler):
        self.recorded, self.separate, self.watched, self.order = (
            recorded,
            like.separate,
            like.watched,
            like.order,
        )

    def sample(self, request: Request) -> Generation:
        def first(value: Any) -> Any:
            return value[: len(request.prompts)] if isinstance(value, list) else value

        rows = {name: first(value) for name, value in vars(self.recorded).items()}
        return Generation(**rows | {"policy_step": request.policy_step})


class Bench:
    """The measurements of one recipe; `words` are overrides as on the command line."""

    def __init__(self, config: str, words: list[str]):
        disable_progress_bar()
        self.recipe: Recipe = load_recipe(config, words, 1)
        self.forecast: Forecast = make_forecast(self.recipe, 1)
        self.untrained = not is_here(self.recipe.flat["model_name_or_path"])
        self.batch = self.forecast.plan.batch

    def as_it_stands(self) -> dict[str, float]:
        """Run the recipe for a few generations; return seconds per step and medians, and keep the last completions."""
        updates = max(1, self.batch.passes // self.batch.gradient_accumulation_steps)
        more = {"max_completion_length": UNTRAINED_TOKENS} if self.untrained else {}
        with TemporaryDirectory() as folder:
            trainer = self._trainer(folder, {**more, "max_steps": GENERATIONS * updates})
            log = trained(trainer)
        last = recorded(trainer.parts.feed.generation)
        self.completions = self._lengthened(last) if self.untrained else last
        self.replay = Replay(self.completions, trainer.parts.sampler)
        del trainer
        free_memory()
        rows = log[updates:]  # without the first generation
        seconds = {
            key: sum(row.get(key, 0.0) for row in rows) / len(rows)
            for row in rows
            for key in row
            if key in TIMES
        }
        return seconds | {
            key: median(row[key] for row in rows if key in row)
            for key in OTHERS
            if any(key in r for r in rows)
        }

    def _lengthened(self, found: Generation) -> Generation:
        """Return completions of random tokens whose lengths are drawn, as those of an untrained model never end."""
        limit = self.recipe.flat["max_completion_length"]
        lengths = draw_lengths(len(found.prompt_ids), limit)
        words = random.Random(0)
        ids = [
            [words.choice(row) for _ in range(n)]
            for row, n in zip(found.completion_ids, lengths, strict=True)
        ]
        logps = [torch.zeros(n) for n in lengths] if found.sampling_logps is not None else None
        return replace(found, completion_ids=ids, sampling_logps=logps, kept=None)

    @property
    def rows(self) -> int:
        """Completions of a step that is measured with other settings: whole groups of the recipe's step, or fewer."""
        prompt_tokens = mean(map(len, self.completions.prompt_ids))
        tokens = prompt_tokens + mean(map(len, self.completions.completion_ids))
        most = MOST_TOKENS["cuda" if torch.cuda.is_available() else "cpu"] / tokens
        group = self.batch.num_generations
        return max(1, int(min(self.batch.completions_per_step, most)) // group) * group

    @property
    def tokens(self) -> list[int]:
        """Tokens of prompt and completion of each of these rows."""
        pairs = zip(self.completions.prompt_ids, self.completions.completion_ids, strict=True)
        return [len(prompt) + len(completion) for prompt, completion in pairs][: self.rows]

    def training_phase(self, settings: dict[str, Any]) -> Measured | None:
        """Train on the recorded completions with other settings; `None` if memory does not suffice.

        Every group has signal, so that all completions run. `ValueError` if the settings do not go with the model.
        """
        sizes = {
            "per_device_train_batch_size": self.rows, "gradient_accumulation_steps": 1, "steps_per_generation": None,
            "generation_batch_size": None, "num_iterations": 1, "use_vllm": False, "sampler": None,
            "behaviour_policy": "decoupled", "environment": None, "group_filter": "off", "curriculum": "none",
            "reward_workers": 0, "max_steps": STEPS,
        }  # fmt: skip
        with TemporaryDirectory() as folder:
            trainer = self._trainer(
                folder, {**sizes, **settings}, sampler=self.replay, rewards=[every_other]
            )
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text(
                    "5"
                )  # Linux counts the peak of this process's memory from now on
            try:
                log = trained(trainer)[1:]
            except torch.OutOfMemoryError:
                return None
            finally:
                del trainer
                free_memory()
        best = min(log, key=lambda row: sum(row.get(name, 0.0) for name in PHASE))
        seconds = sum(best.get(name, 0.0) for name in PHASE)
        peak = max(row["memory/peak_gib"] for row in log)
        return Measured(
            seconds, sum(self.tokens) / seconds, best.get("throughput/share_of_rate"), peak
        )

    def longest_completion(self) -> int | None:
        """Return the tokens of the longest completion that fits on this GPU by estimate; `None` without a GPU or a size."""
        if not torch.cuda.is_available() or self.forecast.size is None:
            return None
        room, prompt = (
            torch.cuda.get_device_properties(0).total_memory,
            round(self.forecast.prompt_tokens or 0),
        )
        return longest_completion(self.forecast.size, self.recipe.flat, self.batch, room, 0, prompt)

    def _trainer(self, folder: str, settings: dict[str, Any], **more: Any) -> Any:
        """Return a trainer of the recipe with other settings that writes to a folder."""
        given = {**self.recipe.flat, **ALONE, **settings, "output_dir": folder}
        recipe = load_recipe(None, given, 1)
        if self.untrained:
            more |= self._untrained(recipe)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            return make_trainer(recipe, **more)

    def _untrained(self, recipe: Recipe) -> dict[str, Any]:
        """Return a model with random weights in the recipe's shape, and a tokenizer; `ValueError` for an unknown shape."""
        name = recipe.flat["model_name_or_path"]
        try:
            config = known_config(name) or AutoConfig.from_pretrained(name, local_files_only=True)
        except OSError:
            how = "write --model_name_or_path FOLDER, with its config.json at least."
            raise ValueError(f"{name} is not here, and its shape is not known: {how}") from None
        on_cpu = recipe.training.use_cpu
        tokenizer = build_tokenizer([])
        config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
        with torch.device("cpu" if on_cpu else "cuda"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32 if on_cpu else torch.bfloat16
            )
        return {"model": model, "processing_class": tokenizer}


def draw_lengths(number: int, limit: int) -> list[int]:
    """Draw lengths of completions in tokens: lognormal, with a mean of `MEAN_SHARE` of the limit, cut at the limit."""
    location = math.log(MEAN_SHARE * limit) - LOG_DEVIATION**2 / 2
    lengths = np.random.default_rng(0).lognormal(location, LOG_DEVIATION, number)
    return lengths.round().clip(1, limit).astype(int).tolist()


def is_here(name: str) -> bool:
    """Whether the weights of a model are in a folder of this name, or in the cache of the hub."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        config = try_to_load_from_cache(name, "config.json") if name.count("/") < 2 else None
        folder = Path(config).parent if isinstance(config, str) else folder
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def trained(trainer: Trainer) -> list[dict[str, float]]:
    """Train silently; return the logs of the steps."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


def recorded(slices: list[Scored]) -> Generation:
    """Return a generation in the order of its prompts."""
    table = join(slices)
    prompts, ids = (
        unpadded(table.prompt_ids, table.prompt_mask),
        unpadded(table.completion_ids, table.completion_mask),
    )
    sampled = table.sampling_per_token_logps
    logps = None if sampled is None else unpadded(sampled, table.completion_mask)
    order = sorted(range(len(table)), key=lambda i: prompts[i].tolist())
    return Generation(
        prompt_ids=[prompts[i].tolist() for i in order],
        completion_ids=[ids[i].tolist() for i in order],
        policy_step=0,
        sampling_logps=logps and [logps[i] for i in order],
        kept=table.kept and [table.kept[i] for i in order],
    )


def unpadded(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    return [row[kept.bool()] for row, kept in zip(values, mask, strict=True)]


def every_other(completions: list[Any], **columns: Any) -> list[float]:
    """A reward that differs within every group."""
    return [float(i % 2) for i in range(len(completions))]


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
