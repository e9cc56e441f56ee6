"""One demo: make a tiny model, warm it up on demonstrations, evaluate, train with GRPO, evaluate again, and compare.

Training runs through the same `accelerate launch` commands as the GPU recipes; only sizes differ.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from grpo_ext.common.foreign_files import read_text
from grpo_ext.demo.demos import Demo
from grpo_ext.demo.stages import Stages
from grpo_ext.evaluation.evaluate_recipe import evaluate_models, outcomes_of, save_evaluation
from grpo_ext.evaluation.table import print_figures, print_grid, question
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import learnt_nothing, read_run
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe, load_recipe, load_sft_recipe
from grpo_ext.run.launch import launch

MOST_COMPLETIONS = 2**28  # bytes of the completions of an evaluation

EVAL_BATCH_SIZE = 256
NUM_SAMPLES = 8


def run_demo(demo: Demo, folder: Path, seed: int = 0, max_steps: int | None = None) -> None:
    """Run all stages that are not done yet, and print the report.

    `seed` is the seed of the model, the demonstrations and both trainings. `max_steps` ends GRPO early; the warm start stays
    whole, because without it the model writes no text.
    `SystemExit` if a training command fails.
    """
    recipe_path, sft_path = recipe_folder() / demo.recipe, recipe_folder() / demo.sft_recipe
    warm, trained = folder / "warm_start", folder / "grpo"
    sft_words = warm_start_words(folder, seed)
    train_words = grpo_words(demo, folder, seed, max_steps)
    recipe = load_recipe(recipe_path, train_words)
    sft = load_sft_recipe(sft_path, sft_words)
    task: Any = recipe.task
    fields: dict[str, Any] = vars(recipe.task)
    if recipe.tasks:
        task = fields = {name: entry.task for name, entry in recipe.tasks.items()}
    stages = Stages(folder, total=5)

    def warm_start(begun: bool) -> None:
        shutil.rmtree(warm, ignore_errors=True)
        checked_launch("grpo_ext.sft", sft_path, sft_words, sft)

    def train(begun: bool) -> None:
        if not begun:
            shutil.rmtree(trained, ignore_errors=True)
        code = launch("grpo_ext.train", ["--config", str(recipe_path), *train_words], recipe)
        # A run of a few steps (`max_steps`) may learn nothing; it says so, and its model is saved all the same.
        if not (code == 1 and learnt_nothing(trained)):
            check_exit("grpo_ext.train", code)

    def evaluate(model: Path, name: str) -> None:
        found = evaluate_models(
            recipe, [str(model)], num_samples=NUM_SAMPLES, batch_size=EVAL_BATCH_SIZE
        )
        save_evaluation(folder / f"{name}.json", found)

    demonstrations_of = getattr(demo.demonstrations, "keywords", {})  # of a `partial`
    made_from = [
        demo.count,
        demo.tokenizer(task),
        demo.shape,
        demo.composed,
        demonstrations_of,
    ]
    start = [made_from, {key: repr(value) for key, value in fields.items()}, seed]
    stages.run("data and model", start, lambda begun: demo.prepare(task, folder, seed))
    stages.run("warm start", [sft_path.read_text(encoding="utf-8"), sft_words], warm_start)
    recipe_text = recipe_path.read_text(encoding="utf-8")
    stages.run(
        "evaluation before", [NUM_SAMPLES, recipe_text], lambda begun: evaluate(warm, "eval_before")
    )
    stages.run("GRPO", [recipe_text, train_words], train)
    stages.run("evaluation after", [NUM_SAMPLES], lambda begun: evaluate(trained, "eval_after"))
    print_report(folder, recipe, stages.seconds)


def warm_start_words(folder: Path, seed: int) -> list[str]:
    """Return the command-line words of the warm start."""
    return words(
        model_name_or_path=folder / "model",
        dataset_name=folder / "demonstrations.jsonl",
        output_dir=folder / "warm_start",
        seed=seed,
    )


def grpo_words(demo: Demo, folder: Path, seed: int, max_steps: int | None) -> list[str]:
    """Return the command-line words of GRPO; `max_steps` replaces the recipe's number of steps."""
    given = words(
        model_name_or_path=folder / "warm_start",
        output_dir=folder / "grpo",
        **demo.settings,
        seed=seed,
    )
    return given if max_steps is None else [*given, *words(max_steps=max_steps)]


def print_report(folder: Path, recipe: Recipe, seconds: dict[str, float]) -> None:
    """Print the table, three completions and the seconds of each stage; write `curves.png`."""
    summaries = {
        when: json.loads(read_text(folder / f"eval_{when}.json", within=folder))
        for when in ("before", "after")
    }
    print_figures(summaries, summaries["before"]["n"])
    rows = completions_rows(folder, outcomes_of(recipe))
    print_grid(
        "greedy completions of the same problems",
        ("problem", "before", "after"),
        rows,
        left=3,
        lines=True,
    )
    plot_runs([read_run(folder / "grpo", max_samples=0)], folder / "curves.png", most=6)
    spent = ", ".join(f"{name} {s:.0f} s" for name, s in seconds.items())
    print(f"time: {spent}; together {sum(seconds.values()):.0f} s")
    print(
        f"curves: {folder / 'curves.png'}; figures: {folder / 'eval_before.json'}, {folder / 'eval_after.json'}\n"
        f"every completion, in a browser: grpo-ext report {folder}"
    )


def completions_rows(folder: Path, outcomes: list[str], count: int = 3) -> list[list[str]]:
    """Return `count` problems with the completions before and after, the largest gains first."""
    texts = (
        read_text(folder / f"eval_{when}_completions.jsonl", MOST_COMPLETIONS, folder)
        for when in ("before", "after")
    )
    # not `splitlines`, which also splits at U+2028 and others that JSON leaves as they are
    found = (map(json.loads, text.strip().split("\n")) for text in texts)
    before, after = ([row for row in rows if row.get("part") != "sampled"] for rows in found)

    def outcome(sample: dict[str, Any]) -> float:
        scores = [sample["rewards"][name] for name in outcomes]
        return next((score for score in scores if score is not None), 0.0)

    def gain(row: int) -> float:
        return outcome(after[row]) - outcome(before[row])

    chosen = sorted(range(len(before)), key=gain, reverse=True)[:count]
    return [
        [question(before[row]), with_scores(before[row]), with_scores(after[row])] for row in chosen
    ]


def with_scores(sample: dict[str, Any]) -> str:
    """Format a completion and, under it, the score of each reward."""
    rewards = ", ".join(
        f"{name} {'-' if v is None else f'{v:g}'}" for name, v in sample["rewards"].items()
    )
    return f"{sample['text']}\n({rewards})"


def words(**settings: Any) -> list[str]:
    """Return settings as command-line words."""
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def checked_launch(module: str, path: Path, more: list[str], recipe: Recipe) -> None:
    """Launch the module with the recipe at `path`, which is loaded as `recipe`, and more words; `SystemExit` if it fails."""
    check_exit(module, launch(module, ["--config", str(path), *more], recipe))


def check_exit(module: str, code: int) -> None:
    """Raise `SystemExit` if a training command failed."""
    if code:
        raise SystemExit(
            f"grpo-ext demo: {module} ended with exit code {code}; its own message is above."
        )
