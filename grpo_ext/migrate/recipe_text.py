"""Write a translated recipe as YAML, with its remarks as comments."""

from __future__ import annotations

from typing import Any

import yaml

from grpo_ext.common.untrusted import one_line
from grpo_ext.common.yaml_text import yaml_scalar
from grpo_ext.migrate.batches import batch_lines
from grpo_ext.migrate.draft import Draft, Source, shown
from grpo_ext.recipe.batch import Batch

# the keys that come first, in this order
FIRST = (
    "model_name_or_path",
    "output_dir",
    "task",
    "dataset_name",
    "dataset_config",
    "dataset_train_split",
    "eval_dataset_name",
    "prompt_column",
    "user_prompt",
    "system_prompt",
    "rename_columns",
    "reward_plugins",
    "reward_funcs",
    "reward_weights",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
    "num_iterations",
)


def recipe_text(source: Source, draft: Draft, batch: Batch) -> str:
    """Return a translated recipe as YAML, with its remarks as comments.

    Args:
        source: the settings that were translated; the first line names their file and project.
        draft: the translated recipe.
        batch: the batch sizes of the recipe, which the next two lines describe.
    """
    lines = [f"# Written by `grpo-ext migrate` from {one_line(source.name)} ({source.project})."]
    lines += [f"# {line}" for line in batch_lines(batch)]
    keys = [key for key in FIRST if key in draft.values or key in draft.missing]
    keys += [key for key in (*draft.values, *draft.missing) if key not in keys]
    for key in keys:
        if key in draft.missing:
            lines.append(f"# {key}:   # by hand: {shown(draft.missing[key])}")
            continue
        line = f"{key}: {yaml_line(draft.values[key])}"
        if key in draft.comments:
            line += f"  # {one_line(draft.comments[key])}"
        lines.append(line)
    for title, by_hand in (("By hand", True), ("Left out", False)):
        remarks = [remark for remark in draft.remarks if remark.by_hand == by_hand]
        if remarks:
            lines += ["", f"# {title}:"]
            lines += [f"# - {remark}" for remark in remarks]
    return "\n".join(lines) + "\n"


def yaml_line(value: Any) -> str:
    """Return a value as YAML on a single line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**9
    )
    text = text.removesuffix("...\n").strip()
    if not text.isprintable():  # a string of several lines, or with odd characters
        return yaml_scalar(value)
    return text
