"""Convert a run's recipe to YAML for `output_dir`, and compare the next run's recipe with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from grpo_ext.common.files import checkpoints
from grpo_ext.common.untrusted import without_secrets
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import read_yaml

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe

SAVED = "recipe.yaml"
# Keys that do not affect what is learned: paths, logging, checkpoints, alarms, and how processes
# are launched and monitored.
FREE = (
    "output_dir", "run_name", "project", "trackio_*", "hub_*", "push_to_hub", "report_to",
    "disable_tqdm", "log_*", "logging_*", "save_*", "resume", "resume_from_checkpoint",
    "restore_callback_states_from_checkpoint", "health_*", "max_skipped_steps", "reward_workers",
    "reward_timeout", "reward_max_failure_rate", "accelerate_config", "dataloader_num_workers",
    "dataloader_prefetch_factor", "dataloader_pin_memory", "dataloader_persistent_workers",
    "ddp_timeout", "vllm_server_*", "vllm_sync_check_*", "vllm_group_port", "preset", "use_cpu",
    "num_completions_to_print", "eval_on_start",
)  # fmt: skip
# Keys of `environment` that do not affect what is learned.
FREE_OF_ENVIRONMENT = ("max_failure_rate", "step_timeout")
LENGTHS = ("max_steps", "num_train_epochs")  # raising one of these continues a finished run
# With `eval_temperature`, evaluation preserves the RNG state, so these keys do not affect what is
# learned.
EVALUATION = (
    "eval_*",
    "max_eval_samples",
    "per_device_eval_batch_size",
    "num_generations_eval",
    "dataset_test_split",
)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Return a recipe's values as YAML, without secrets, `resume` or `resume_from_checkpoint`."""
    saved = dict(values)
    saved.pop("resume", None)
    saved.pop("resume_from_checkpoint", None)
    return yaml.safe_dump(_plain(saved), allow_unicode=True, sort_keys=False)


def differences(recipe: Recipe, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Compare a recipe with a saved one, and return the (saved, new) values of keys that differ.

    Keys that do not affect training are left out. A key that is not set has its default value. The
    result is empty if `folder` contains no saved recipe, or the saved recipe cannot be read.

    Args:
        recipe: the new recipe; it is first adapted to this machine, in place.
        folder: the `output_dir` of the saved recipe's run.
    """
    try:
        saved = {key: value for key, (value, _) in read_yaml(folder / SAVED, folder).items()}
    except (OSError, RecipeError):
        return {}
    recipe.fit_machine()
    flat = recipe.flat
    present = _plain(dict(flat))
    defaults = _plain(flat.defaults)
    free: tuple[str, ...] = FREE
    if flat.has("eval_temperature") and flat["eval_temperature"] is not None:
        free += EVALUATION
    changed: dict[str, tuple[Any, Any]] = {}
    for key in {**saved, **present}:
        if any(fnmatchcase(key, pattern) for pattern in free):
            continue
        then = saved.get(key, defaults.get(key))
        now = present.get(key, defaults.get(key))
        if _shaping(key, then) != _shaping(key, now):
            changed[key] = (then, now)
    return changed


def check_same_run(recipe: Recipe) -> None:
    """Raise `ValueError` if `output_dir` contains a run with a different recipe.

    The message lists the differences. Nothing is checked unless the run would resume automatically
    (`resume: auto` without `resume_from_checkpoint`) and `output_dir` contains checkpoints or a
    finished run. A finished run with checkpoints may be continued if nothing but `max_steps` or
    `num_train_epochs` differs, and each that differs was raised.
    """
    if not recipe.flat.has("resume"):
        return  # supervised training resumes only from an explicit `resume_from_checkpoint`
    folder = Path(recipe.get("output_dir")).expanduser()
    saved = checkpoints(folder)
    finished = (folder / "trainer_state.json").exists()
    if (
        recipe.get("resume") != "auto"
        or recipe.get("resume_from_checkpoint")
        or not (saved or finished)
    ):
        return
    changed = differences(recipe, folder)
    longer = all(key in LENGTHS and 0 < then < now for key, (then, now) in changed.items())
    if not changed or (longer and finished and saved):
        return
    lines = [f"  {key}: {_shown(then)}  ->  {_shown(now)}" for key, (then, now) in changed.items()]
    lines += ["Use one of these options:", "  --output_dir FOLDER: start in another folder"]
    lines += ["  --resume never: start from scratch here; the old run moves to earlier-N"]
    if saved:
        lines += [f"  --resume {saved[-1]}: continue from that checkpoint with the new values"]
    raise ValueError(
        "\n".join(
            [f"{folder} contains a run of another recipe. Its values and the new ones:", *lines]
        )
    )


def _shaping(key: str, value: object) -> object:
    """Return the value of `key` without environment options that do not affect training."""
    if not isinstance(value, dict):
        return value
    if key == "environment":
        return {name: option for name, option in value.items() if name not in FREE_OF_ENVIRONMENT}
    if key == "environments":
        return {name: _shaping("environment", given) for name, given in value.items()}
    if key == "tasks":
        return {name: _entry_shaping(entry) for name, entry in value.items()}
    return value


def _entry_shaping(entry: object) -> object:
    """Return an entry of `tasks` without environment options that do not affect training."""
    if not isinstance(entry, dict) or "environment" not in entry:
        return entry
    return {**entry, "environment": _shaping("environment", entry["environment"])}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's values as JSON types, without secrets."""
    text = json.dumps(values, default=lambda value: getattr(value, "value", None) or str(value))
    return without_secrets(json.loads(text))


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
