"""Train on episodes: how exact each sampler is, and how many tokens TRL's own tool loop reads."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import words
from grpo_ext.environments.check import Check
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import load_recipe
from grpo_ext.run.from_recipe import named_rewards_and_weights, train_rows
from tests.support.logs import entries_with, json_rows

QUIET = {"eval_strategy": "no", "eval_on_start": False, "save_strategy": "no", "disable_tqdm": True}


class TRLCheck:
    """The environment `check` as TRL's `environment_factory` takes it."""

    def reset(self, **row: Any) -> None:
        self._world = Check()
        self._world.reset(row)

    def check(self, expression: str) -> str:
        """Say whether an expression uses all numbers and makes the target.

        Args:
            expression: Such as 8 + 3 - 1.
        """
        return self._world.check(expression)


def warm_start(name: str, folder: Path, checks: int = 0) -> Path:
    """Make a demo's model in `folder`, and warm it up for 60 steps.

    Only demonstrations with at least `checks` checks are used.
    """
    demo = DEMOS[name]
    demo.prepare(
        load_recipe(recipe_folder() / demo.recipe, words(model_name_or_path="x")).task, folder, 0
    )
    demonstrations = folder / "demonstrations.jsonl"
    rows = demonstrations.read_text(encoding="utf-8").splitlines(keepends=True)
    demonstrations.write_text(
        "".join(row for row in rows if row.count('"tool_calls"') >= checks), encoding="utf-8"
    )
    given = {
        "model_name_or_path": folder / "model",
        "dataset_name": demonstrations,
        "max_steps": 60,
    }
    command("sft", demo.sft_recipe, **given, output_dir=folder / "warm")
    return folder / "warm"


def exactness(folder: Path, quick: bool) -> dict[str, float]:
    """Return the largest difference between the trainer's and the sampler's log-probs, by case.

    Only tokens that the model wrote count.

    Both tasks train a few steps with truncated sampling after a short warm start, with every
    sampler that is installed, on one and, unless `quick`, on two ranks. A wrong or misplaced token
    would have another log-prob.
    """
    engines: dict[str, dict[str, Any]] = {"transformers": {}}
    if find_spec("vllm") and not quick:
        vllm = {"use_vllm": True, "vllm_max_model_length": 320}
        engines["vLLM colocate"] = {**vllm, "vllm_mode": "colocate"}
        engines["vLLM server"] = {**vllm, "vllm_mode": "server", "vllm_server_host": "127.0.0.1"}
    found = {}
    for name in ("guess", "check"):
        warm = warm_start(name, folder / name)
        for engine, options in engines.items():
            for ranks in (1,) if quick else (1, 2):
                out = folder / name / f"{engine}-{ranks}"
                sampling = {
                    "temperature": 0.8,
                    "top_k": 40,
                    "top_p": 0.9,
                    "per_device_train_batch_size": 64 // ranks,
                }
                where = {
                    "model_name_or_path": warm,
                    "output_dir": out,
                    "num_processes": ranks,
                    "max_steps": 3,
                }
                serve = ["--serve"] * (engine == "vLLM server")
                ports = (
                    {"vllm_server_port": free_port(), "vllm_group_port": free_port()}
                    if serve
                    else {}
                )
                command(
                    "train",
                    DEMOS[name].recipe,
                    *serve,
                    **where,
                    **sampling,
                    **QUIET,
                    **options,
                    **ports,
                )
                found[f"{name}, {engine}, {ranks} rank{'s' * (ranks > 1)}"] = farthest(
                    out / "metrics.jsonl"
                )
                print(
                    f"{name}, {engine}, {ranks} ranks: {farthest(out / 'metrics.jsonl'):.1e}",
                    flush=True,
                )
    return found


def read_in_training(folder: Path) -> dict[str, dict[str, float]]:
    """Train three steps on episodes of several checks, with TRL's tool loop and with ours.

    Return, for each trainer, the tokens that generation read per completion token (including
    padding), the turns, and the seconds per step.
    """
    warm = warm_start("check", folder, checks=3)
    found = {}
    for side in ("TRL", "ours"):
        given = {
            "model_name_or_path": warm,
            "output_dir": folder / side,
            "max_steps": 3,
            "learning_rate": 1e-9,
            **QUIET,
        }
        recipe = load_recipe(
            recipe_folder() / DEMOS["check"].recipe, words(**given, max_tool_calling_iterations=5)
        )
        recipe.training.environment = {
            "name": "check",
            "turns": 6,
        }  # without turn_tokens: TRL does not limit a turn
        rewards, recipe.training.reward_weights = named_rewards_and_weights(recipe)
        made: dict[str, Any] = {"args": recipe.training, "train_dataset": train_rows(recipe)}
        if side == "TRL":
            trainer = GRPOTrainer(str(warm), rewards, **made, environment_factory=TRLCheck)
        else:
            trainer = GRPOExtTrainer(str(warm), rewards, **made)
        read = [0]

        def count(_: Any, ids: tuple[torch.Tensor], __: Any, read: list[int] = read) -> None:
            read[0] += 0 if torch.is_grad_enabled() else ids[0].numel()

        model: Any = trainer.model
        model.get_input_embeddings().register_forward_hook(count)
        trainer.train()
        steps = entries_with(trainer, "reward")
        written = (
            sum(row["completions/mean_length"] for row in steps)
            * recipe.training.per_device_train_batch_size
        )
        found[side] = {
            "read": read[0] / written,
            "calls": statistics.mean(row["tools/call_frequency"] for row in steps),
            "seconds": statistics.median(row["step_time"] for row in steps[1:]),
        }
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def command(verb: str, recipe: str, *flags: str, **settings: Any) -> None:
    """Run `grpo-ext` with a recipe, flags and settings.

    Raise `RuntimeError`, with the end of its output, if it fails.
    """
    ran = [
        sys.executable,
        "-m",
        "grpo_ext",
        verb,
        "--config",
        str(recipe_folder() / recipe),
        *flags,
        *words(**settings),
    ]
    done = subprocess.run(ran, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(ran)}: {done.stdout[-500:]}{done.stderr[-2000:]}")


def farthest(logs: Path) -> float:
    """Return the largest difference of an importance ratio from 1 in a run's logs."""
    steps = json_rows(logs)
    ratios = [
        step[key]
        for step in steps
        for key in step
        if key.startswith("sampling/") and key.endswith(("ratio/min", "ratio/max"))
    ]
    return max(abs(ratio - 1) for ratio in ratios)
