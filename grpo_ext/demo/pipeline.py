"""One demo: make a tiny model, warm it up on demonstrations, evaluate, train with GRPO, evaluate again, show what changed.

Training runs through the same `accelerate launch` commands that the GPU recipes use; only sizes differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.demo.before_and_after import print_report
from grpo_ext.demo.stages import Stages
from grpo_ext.evaluation.evaluate import save_evaluation
from grpo_ext.evaluation.evaluate_recipe import evaluate_recipe
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe, load_recipe, load_sft_recipe
from grpo_ext.run.launch import launch
from grpo_ext.tiny.tokenizer import build_tokenizer

EVAL_BATCH_SIZE = 256
NUM_SAMPLES = 8


@dataclass(frozen=True)
class Demo:
    """What a demo is made of.

    Args:
        recipe, sft_recipe: names below `recipes/`, such as `countdown/tiny.yaml`.
        folder: where it works when none is asked for.
        prepare: `prepare(recipe, folder, seed)` writes the untrained model to `folder/model` and the demonstrations to
            `folder/demonstrations.jsonl`.
        prepared_from: what `prepare` does, in words that change when it does; part of the first stage's fingerprint.
    """

    recipe: str
    sft_recipe: str
    folder: str
    prepare: Callable[[Recipe, Path, int], None]
    prepared_from: dict[str, Any]


def run_demo(demo: Demo, folder: Path, seed: int = 0) -> None:
    """Run all stages that are not done yet, and print the report.

    Args:
        folder: of everything that the demo writes.
        seed: of the model, the demonstrations and both trainings.

    Raises:
        RuntimeError: if a training command fails.
    """
    recipe_path, sft_path = recipe_folder() / demo.recipe, recipe_folder() / demo.sft_recipe
    warm, trained = folder / "warm_start", folder / "grpo"
    sft_words = words(
        model_name_or_path=folder / "model", dataset_name=folder / "demonstrations.jsonl", output_dir=warm, seed=seed
    )
    train_words = words(model_name_or_path=warm, output_dir=trained, seed=seed)
    recipe = load_recipe(recipe_path, train_words)
    sft = load_sft_recipe(sft_path, sft_words)
    stages = Stages(folder, total=5)

    def prepare(begun: bool) -> None:
        demo.prepare(recipe, folder, seed)

    def warm_start(begun: bool) -> None:
        shutil.rmtree(warm, ignore_errors=True)
        checked_launch("grpo_ext.sft", sft_path, sft_words, sft.run.accelerate_config)

    def train(begun: bool) -> None:
        resume = last_checkpoint(trained) if begun else None
        if resume is None:
            shutil.rmtree(trained, ignore_errors=True)
        more = words(resume_from_checkpoint=resume) if resume else []
        checked_launch("grpo_ext.train", recipe_path, [*train_words, *more], recipe.run.accelerate_config)

    def evaluate(model: Path, name: str) -> None:
        summary, samples, rows = evaluate_recipe(
            recipe, str(model), num_samples=NUM_SAMPLES, batch_size=EVAL_BATCH_SIZE
        )
        save_evaluation(folder / f"{name}.json", summary, samples, rows)

    task = {key: repr(value) for key, value in vars(recipe.task).items()}
    stages.run("data and model", [demo.prepared_from, task, seed], prepare)
    stages.run("warm start", [sft_path.read_text(encoding="utf-8"), sft_words], warm_start)
    recipe_text = recipe_path.read_text(encoding="utf-8")
    stages.run("evaluation before", [NUM_SAMPLES, recipe_text], lambda begun: evaluate(warm, "eval_before"))
    stages.run("GRPO", [recipe_text, train_words], train)
    stages.run("evaluation after", [NUM_SAMPLES], lambda begun: evaluate(trained, "eval_after"))
    print_report(folder, recipe, stages.seconds)


def save_start(folder: Path, rows: list[Any], make_model: Callable[[Any], Any], **tokenizer_options: Any) -> None:
    """Write what the warm start begins with: `demonstrations.jsonl`, and in `model` a tokenizer and an untrained model.

    Args:
        rows: demonstrations, as `prompt` and `completion` messages; the tokenizer is trained on the first 2,000.
        make_model: makes the model for the tokenizer.
        **tokenizer_options: of `build_tokenizer`.
    """
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    write_atomically(folder / "demonstrations.jsonl", "\n".join(lines) + "\n")
    corpus = [message["content"] for row in rows[:2000] for part in row.values() for message in part]
    tokenizer = build_tokenizer(corpus, **tokenizer_options)
    tokenizer.save_pretrained(folder / "model")
    make_model(tokenizer).save_pretrained(folder / "model")


def words(**settings: Any) -> list[str]:
    """Settings as command-line words."""
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that a stopped run left, if any."""
    from transformers.trainer_utils import get_last_checkpoint

    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def checked_launch(module: str, recipe: Path, more: list[str], config_name: str | None) -> None:
    """`launch`, with an error where it fails."""
    code = launch(module, ["--config", str(recipe), *more], config_name)
    if code:
        raise RuntimeError(f"{module} ended with exit code {code}; its own message is above.")
