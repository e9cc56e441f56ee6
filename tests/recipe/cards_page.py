"""Write the tables of `docs/which-settings.md`: settings that fit a card, by the estimates of
`grpo-ext plan`.

`make cards` runs it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from grpo_ext import load_recipe
from grpo_ext.cli.plan import GPU_GIGABYTES
from grpo_ext.preflight.forecast import known_config, model_size
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.memory import ModelSize, cache_bytes, longest_completion, memory_estimate
from grpo_ext.recipe.typed_values import Values
from tests.support.places import REPO

PAGE = REPO / "docs" / "which-settings.md"
BEGIN = "<!-- cards -->\n"
END = "<!-- end -->"
COLUMNS = (
    "model",
    "method",
    "micro-batch",
    "longest completion",
    "vLLM's share",
    "sleep mode",
    "trainer",
)
MODELS = (
    "Qwen/Qwen3.5-0.8B",
    "google/gemma-3-1b-it",
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen3-1.7B",
    "meta-llama/Llama-3.2-3B-Instruct",
    "Qwen/Qwen3-4B",
)
GIGABYTE = 10**9
USED = 0.85  # the share of a card that the estimate may fill, as in `grpo-ext init`
PROMPT = 256  # tokens
COMPLETION = 1024  # tokens of the completions in a micro-batch
STEP = 64  # completions of an optimizer step on each GPU
AT_ONCE = 32  # completions of this length that vLLM's cache holds
ENGINE_EXTRA = 2 * GIGABYTE  # for vLLM's own activations and compiled graphs


@dataclass(frozen=True)
class Method:
    """A way to train: its keys of a recipe, and the number of GPUs that train."""

    values: dict[str, object]
    gpus: int = 1


LORA = {"dtype": "bfloat16", "use_peft": True, "lora_r": 32, "lora_target_modules": "all-linear"}
METHODS = {
    "LoRA": Method(LORA),
    "full": Method({"dtype": "float32"}),
    "ZeRO-2": Method({"dtype": "bfloat16", "accelerate_config": "zero2"}, 8),
    "ZeRO-3": Method({"dtype": "bfloat16", "accelerate_config": "zero3"}, 8),
}
# by the title of a table: a card's name in `grpo-ext plan --gpu`, and the methods
CARDS = {
    "One GPU of 24 GB": ("4090", ("LoRA", "full")),
    "One GPU of 48 GB": ("l40s", ("LoRA", "full")),
    "One GPU of 80 GB": ("h100", ("LoRA", "full")),
    "One GPU of 141 GB": ("h200", ("LoRA", "full")),
    "Eight GPUs of 80 GB": ("h100", ("ZeRO-2", "ZeRO-3")),
}


@dataclass(frozen=True)
class Plan:
    """What the estimates need to know of a model and a method."""

    size: ModelSize
    values: Values
    batch: Batch
    sharding: int
    longest: int  # tokens of the longest completion that the model's context has room for

    def memory(self, micro_batch: int) -> dict[str, int]:
        """Return the bytes on each GPU, by part, with micro-batches of this many completions."""
        values = self.values.replaced(per_device_train_batch_size=micro_batch)
        batch = batch_of(values, self.batch.num_processes)
        return memory_estimate(self.size, values, batch, self.sharding, PROMPT)


@dataclass(frozen=True)
class Settings:
    """Settings of a recipe that fit a card by estimate."""

    micro_batch: int
    longest: int
    utilization: float
    sleeps: bool
    trainer: int  # bytes on each GPU


@cache
def plan_of(model: str, method_name: str) -> Plan:
    method = METHODS[method_name]
    values = {
        "model_name_or_path": model,
        "use_vllm": True,
        "gradient_checkpointing": True,
        "beta": 0.0,
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "max_completion_length": COMPLETION,
        **method.values,
    }
    recipe = load_recipe(None, values, method.gpus)
    size = model_size(recipe.flat, recipe.model)
    config = known_config(model)
    assert size is not None and config is not None
    batch = batch_of(recipe.flat, method.gpus)
    room = config.max_position_embeddings - PROMPT
    return Plan(size, recipe.flat, batch, sharding(recipe.flat), room)


def engine_share(size: ModelSize, card: int) -> float:
    """Return the share of a card of `card` bytes that vLLM needs, rounded up to 0.05."""
    cache = AT_ONCE * (PROMPT + COMPLETION) * cache_bytes(size)
    engine = 2 * size.parameters + cache + ENGINE_EXTRA
    return math.ceil(20 * engine / card) / 20


def settings_for(plan: Plan, card: int) -> Settings | None:
    """Return the settings for a card of `card` bytes; `None` if the run does not fit.

    Where the trainer does not fit beside vLLM, vLLM sleeps while the trainer trains.
    """
    utilization = engine_share(plan.size, card)
    usable = USED * card
    engine = utilization * card
    least = plan.memory(1)
    sleeps = least["total"] + engine > usable
    room = usable if sleeps else usable - engine
    while_sampling = least["weights"] + least["optimizer"] + engine
    if least["total"] > room or while_sampling > usable:
        return None
    micro_batch = 1
    while micro_batch < STEP and plan.memory(2 * micro_batch)["total"] <= room:
        micro_batch *= 2
    longest = longest_completion(
        plan.size, plan.values, plan.batch, int(room), plan.sharding, PROMPT
    )
    in_cache = AT_ONCE * (PROMPT + COMPLETION) - PROMPT
    return Settings(
        micro_batch,
        min(longest, plan.longest, in_cache),
        utilization,
        sleeps,
        plan.memory(micro_batch)["total"],
    )


def table(title: str) -> str:
    """Return the section of one card: its table, and what does not fit."""
    card, methods = CARDS[title]
    card_bytes = GPU_GIGABYTES[card] * GIGABYTE
    lines = [
        f"## {title}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    too_large = []
    for model in MODELS:
        name = model.partition("/")[2]
        for method in methods:
            settings = settings_for(plan_of(model, method), card_bytes)
            if settings is None:
                too_large.append(f"{name} {method}")
                continue
            lines.append(
                f"| {name} | {method} | {settings.micro_batch} | {settings.longest:,} | "
                f"{settings.utilization:g} | {'on' if settings.sleeps else 'off'} | "
                f"{settings.trainer / 2**30:.1f} GiB |"
            )
    if too_large:
        lines += ["", f"Too large: {', '.join(too_large)}."]
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """Return the page with its tables written anew."""
    tables = "\n\n".join(table(title) for title in CARDS)
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n{tables}\n\n{END}", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")
