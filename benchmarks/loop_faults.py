"""How do the usual faults of a GRPO loop written from scratch affect learning?

    python -m benchmarks.loop_faults [--quick] [--check] [--model FOLDER] [--plot FILE.png]
        [--out FILE]

The loop of `own_loop.py` trains tiny Countdown from its warm start, without a fault and with each
fault alone, for three seeds. Prints the held-out greedy accuracy, completion length and gradient
norm at the end, and the difference that each fault makes, paired by seed, with its 95 % interval.
`--check` exits with 1 unless, by these intervals, the loop without faults learns and scoring
truncated samples over the whole vocabulary costs accuracy. A single seed, as with `--quick`, is
only measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils.logging import disable_progress_bar

from benchmarks.countdown_runs import recipe_for, warm_start
from benchmarks.own_loop import Fault, Problem, Settings, rewards_of, train
from benchmarks.recorded import save
from benchmarks.seeds import as_text
from grpo_ext.common.estimates import Estimate, mean_difference
from grpo_ext.tasks.countdown import Countdown

PLAIN = Settings()
WITH_KL = replace(PLAIN, beta=0.04)
TRUNCATED = replace(PLAIN, top_k=20, top_p=0.9)
BY_SGD = replace(PLAIN, optim="sgd", learning_rate=0.5, micro_batches=4)
BASES = {"plain": PLAIN, "beta 0.04": WITH_KL, "top_k 20, top_p 0.9": TRUNCATED, "SGD": BY_SGD}
BASE_OF = {
    Fault.ONE_GROUP: "plain",
    Fault.MASK_WITHOUT_END: "plain",
    Fault.PADDING_IN_MEAN: "plain",
    Fault.ANY_ANSWER: "plain",
    Fault.KL_INVERTED: "beta 0.04",
    Fault.SCORED_WHOLE: "top_k 20, top_p 0.9",
    Fault.SUMMED_MICRO_BATCHES: "SGD",
}
PROBLEMS_PER_STEP = 16


@dataclass(frozen=True)
class Run:
    """The curves of a run, one value per step, and its held-out accuracy before and after."""

    reward: list[float]
    completion_length: list[float]
    grad_norm: list[float]
    accuracy_before: float
    accuracy: float


def problems_of(task: Countdown, tokenizer: Tokenizer, split: str) -> list[Problem]:
    """Return the problems of a split with their rendered prompts."""
    problems = []
    for row in task.generate(split):
        prompt = tokenizer.apply_chat_template(
            task.prompt(row), tokenize=False, add_generation_prompt=True
        )
        problems.append(Problem(str(prompt), row["nums"], row["target"]))
    return problems


@torch.no_grad()
def greedy_accuracy(
    model: PreTrainedModel, tokenizer: Tokenizer, problems: list[Problem], max_length: int
) -> float:
    """Return the share of problems that greedy decoding solves."""
    prompts = [problem.prompt for problem in problems]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    generate: Any = model.generate  # transformers gives it no usable type
    ids = generate(**inputs, do_sample=False, max_new_tokens=max_length)
    completions = tokenizer.batch_decode(
        ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    rewards = rewards_of(completions, problems, PLAIN)
    return float((rewards >= 1).float().mean())


def run(folder: Path, settings: Settings, seed: int, steps: int) -> Run:
    """Train the model in a folder with the loop of `own_loop.py`."""
    torch.set_num_threads(1)
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    task = recipe_for(folder, folder / "unused").task
    assert isinstance(task, Countdown)
    train_problems = problems_of(task, tokenizer, "train")
    test_problems = problems_of(task, tokenizer, "test")
    rng = random.Random(seed)
    batches = [rng.sample(train_problems, PROBLEMS_PER_STEP) for _ in range(steps)]
    length = settings.max_completion_length
    before = greedy_accuracy(model, tokenizer, test_problems, length)
    rows = list(train(model, tokenizer, batches, settings, seed=1000 * seed))
    return Run(
        reward=[row["reward"] for row in rows],
        completion_length=[row["completion_length"] for row in rows],
        grad_norm=[row["grad_norm"] for row in rows],
        accuracy_before=before,
        accuracy=greedy_accuracy(model, tokenizer, test_problems, length),
    )


def all_runs(folder: Path, seeds: int, steps: int) -> dict[str, list[Run]]:
    """Return the runs of each base setting and of each fault, one per seed."""
    variants = dict(BASES)
    for fault, base in BASE_OF.items():
        variants[fault.value] = replace(BASES[base], faults=frozenset([fault]))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        futures = {
            name: [pool.submit(run, folder, settings, seed, steps) for seed in range(seeds)]
            for name, settings in variants.items()
        }
        runs = {}
        for name, of_seeds in futures.items():
            runs[name] = [future.result() for future in of_seeds]
            print(line_of(name, runs[name]), flush=True)
    return runs


def line_of(name: str, runs: list[Run]) -> str:
    accuracy = statistics.mean(run.accuracy for run in runs)
    length = statistics.mean(run.completion_length[-1] for run in runs)
    norm = statistics.mean(statistics.mean(run.grad_norm) for run in runs)
    return f"{name:34} accuracy {accuracy:.3f}  length {length:5.1f}  grad_norm {norm:.3f}"


def effect_of(fault: Fault, runs: dict[str, list[Run]]) -> Estimate | None:
    """Return the difference that a fault makes to the accuracy, paired by seed."""
    right = [run.accuracy for run in runs[BASE_OF[fault]]]
    wrong = [run.accuracy for run in runs[fault.value]]
    return mean_difference(right, wrong)


def plot(runs: dict[str, list[Run]], path: Path) -> None:
    """Plot the reward with and without each fault: the mean over seeds, and each seed behind it."""
    figure, axes = plt.subplots(2, 4, figsize=(12, 5.2), layout="constrained", sharey=True)
    for axis, fault in zip(axes.flat, BASE_OF, strict=False):
        base = BASE_OF[fault]
        for color, name, label in (("C0", base, base), ("C3", fault.value, "with the fault")):
            curves = torch.tensor([run.reward for run in runs[name]])  # (seeds, steps)
            smooth = torch.nn.functional.avg_pool1d(
                curves.unsqueeze(1), 5, 1, 2, count_include_pad=False
            ).squeeze(1)
            axis.plot(smooth.T, color=color, alpha=0.25, linewidth=0.8)
            axis.plot(smooth.mean(0), color=color, label=label)
        axis.set(title=fault.value, xlabel="step", ylabel="reward")
        axis.legend()
    axes.flat[-1].axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 4 steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--plot", type=Path, help="where to draw the curves")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    seeds = 3
    steps = 40
    if args.quick:
        seeds = 1
        steps = 4
    with tempfile.TemporaryDirectory() as folder:
        runs = all_runs(args.model or warm_start(Path(folder)), seeds, steps)
    print("\nwhat a fault adds to the accuracy")
    effects = {fault: effect_of(fault, runs) for fault in BASE_OF}
    for fault, effect in effects.items():
        same = runs[fault.value] == runs[BASE_OF[fault]]
        print(f"{fault.value:34} {'the same runs' if same else as_text(effect)}")
    if args.plot:
        plot(runs, args.plot)
    if args.out:
        figures = {name: list(map(vars, of_seeds)) for name, of_seeds in runs.items()}
        save(args.out, {"steps": steps, "runs": figures})
    learned = mean_difference(
        [run.accuracy_before for run in runs["plain"]], [run.accuracy for run in runs["plain"]]
    )
    unlearned = effects[Fault.SCORED_WHOLE]
    print(f"{'learned without faults':34} {as_text(learned)}")
    if args.check and seeds > 1:
        if learned is None or learned.verdict != "rose":
            sys.exit("The loop without faults did not clearly learn.")
        if unlearned is None or unlearned.verdict != "fell":
            sys.exit("Scoring truncated samples over the whole vocabulary cost nothing.")


if __name__ == "__main__":
    main()
