"""What do rewards and loss terms add that the published experiments do not use?

    python -m benchmarks.extra_signals [--quick] [--check] [--model FOLDER] [--out FILE]

Each signal is off in one run and on in another. The two runs of a pair have the same seed and stop
after the same number of generated tokens. Tiny Countdown tests `right_steps`, the supervised term
on correct completions, `tie_break_reward`, and more completions for hard prompts. `relevance` and
`language_consistency`, each for one `part` of a completion, are tested in a world of four subjects
and two languages, in which a tiny model writes thoughts and an answer from words drawn at random.
The figures are those of completions sampled in the last 10 steps, or of held-out problems, over
three seeds of Countdown and eight of the world. `--check` exits with 1 unless every figure in
`MUST_CHANGE` has clearly changed.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from transformers.utils.logging import disable_progress_bar

from benchmarks.countdown_runs import accuracy, recipe_for, train, warm_start
from benchmarks.recorded import save
from benchmarks.seeds import as_text
from grpo_ext import GRPOExtTrainer
from grpo_ext.common.estimates import mean_difference
from grpo_ext.observe.jsonl import read
from grpo_ext.rewards import build
from grpo_ext.rewards.arithmetic_steps import steps_in
from grpo_ext.rewards.completion_parts import part_of
from grpo_ext.rewards.right_steps import share_of_right
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.optimizer import MuonWithAdamW
from grpo_ext.tiny.tokenizer import build_tokenizer
from tests.support.tiny_run import tiny_arguments

Figures = dict[str, float]
LAST_STEPS = 10
COUNTDOWN_SEEDS = 3
WORLD_SEEDS = 8
COUNTDOWN_TOKENS = 860_000  # generated in a run: about 80 steps of 256 completions
WORLD_TOKENS = 100_000
LONGEST_RUN = 400  # steps


class TokenBudget(TrainerCallback):
    """Stops a run after the step in which its generated tokens reach a number."""

    def __init__(self, tokens: int, completions: int):
        self.tokens_left = float(tokens)
        self.completions = completions

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        length = (logs or {}).get("completions/mean_length", 0.0)
        self.tokens_left -= length * self.completions
        control.should_training_stop |= self.tokens_left <= 0


class Pair(NamedTuple):
    """Settings without and with a signal, and the figures that it may change."""

    off: str
    on: str
    figures: tuple[str, ...]


# ---- Countdown

COUNTDOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "right_steps": {
        "reward_funcs": ["countdown", "format", {"name": "right_steps", "numbers": "nums"}],
        "reward_weights": [1.0, 0.25, 0.25],
    },
    "supervised term": {"positive_nll_coef": 0.1},
    "tie-break": {
        "reward_funcs": ["countdown", "format", {"name": "length", "target": 1}],
        "reward_weights": [1.0, 0.25, 0.0],
        "tie_break_reward": "length",
    },
    "adaptive, 4 each": {"curriculum": "adaptive", "num_generations": 4},
    "more for hard prompts": {
        "curriculum": "adaptive",
        "num_generations": 4,
        "max_slots_per_prompt": 4,
    },
}
OF_COUNTDOWN = ("held out, greedy", "held out, sampled")
PAIRS = [
    Pair("plain", "right_steps", (*OF_COUNTDOWN, "right steps")),
    Pair("plain", "supervised term", OF_COUNTDOWN),
    Pair("plain", "tie-break", (*OF_COUNTDOWN, "tokens of right completions")),
    Pair("adaptive, 4 each", "more for hard prompts", OF_COUNTDOWN),
]


def countdown_run(model: Path, name: str, seed: int, tokens: int) -> Figures:
    settings = dict(COUNTDOWN[name])
    if "reward_funcs" in settings:
        settings["reward_funcs"] = json.dumps(settings["reward_funcs"])
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_for(
            model,
            folder,
            seed=seed,
            max_steps=LONGEST_RUN,
            lr_scheduler_type="constant_with_warmup",
            **settings,
        )
        logs = train("ours", recipe, [TokenBudget(tokens, 256)])
        samples = last_samples(Path(folder), len(logs))
        held_out = accuracy(recipe, folder)
    shares = [share_of_right(steps_in(part_of(row["text"], "thoughts"))) for row in samples]
    right = [row for row in samples if row["rewards"]["countdown"] == 1.0]
    return {
        "steps": len(logs),
        "held out, greedy": held_out["greedy"],
        "held out, sampled": held_out["sampled"],
        "right steps": statistics.mean(share for share in shares if share is not None),
        "tokens of right completions": statistics.mean(row["length"] for row in right),
    }


def last_samples(folder: Path, steps: int) -> list[dict[str, Any]]:
    return [row for row in read(folder / "samples.jsonl") if row["step"] >= steps - LAST_STEPS]


# ---- subjects and languages

SUBJECTS = {
    "rain": ["wet", "cloud", "drop", "puddle", "storm", "雨", "云", "湿", "伞", "雷"],
    "bread": ["flour", "oven", "crust", "yeast", "dough", "面", "烤", "麦", "粉", "饼"],
    "chess": ["pawn", "rook", "bishop", "queen", "mate", "兵", "车", "象", "后", "棋"],
    "sea": ["wave", "salt", "sail", "tide", "anchor", "浪", "盐", "帆", "潮", "船"],
}
WORDS_EACH = 4  # in the thoughts, and in the answer
WORLD: dict[str, list[str | tuple[str, dict[str, Any]]]] = {
    "form alone": ["format"],
    "relevance": ["format", ("relevance", {"num_unrelated": 3})],
    "language of thoughts": ["format", ("language_consistency", {"part": "thoughts"})],
    "language of answer": ["format", ("language_consistency", {"part": "answer"})],
}
PAIRS += [
    Pair("form alone", "relevance", ("answers on the subject",)),
    Pair("form alone", "language of thoughts", ("English in thoughts", "English in answers")),
    Pair("form alone", "language of answer", ("English in thoughts", "English in answers")),
]
MUST_CHANGE = [
    ("relevance", "answers on the subject", "rose"),
    ("language of thoughts", "English in thoughts", "rose"),
    ("language of answer", "English in answers", "rose"),
]


def prompt_of(subject: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Write about {subject}."}]


def text_on(subject: str, rng: random.Random) -> str:
    """Return thoughts and an answer, each in one of two languages.

    Half of the words fit the subject.
    """
    parts = []
    for _ in range(2):
        language = slice(0, 5) if rng.random() < 0.5 else slice(5, 10)
        words = []
        for _ in range(WORDS_EACH):
            topic = subject if rng.random() < 0.33 else rng.choice(list(SUBJECTS))
            words.append(rng.choice(SUBJECTS[topic][language]))
        parts.append(" ".join(words))
    return f"<think>\n{parts[0]}\n</think>\n<answer>\n{parts[1]}\n</answer>"


def world_model(folder: Path, seed: int, steps: int = 150) -> Path:
    """Make a model that writes texts like those of `text_on`."""
    rng = random.Random(seed)
    texts = [(subject, text_on(subject, rng)) for _ in range(600) for subject in SUBJECTS]
    tokenizer = build_tokenizer([f"{prompt_of(s)[0]['content']} {text}" for s, text in texts], 500)
    model = build_model(tokenizer, seed=seed, hidden_size=64, intermediate_size=128)
    optimizer = MuonWithAdamW(model, lr=5e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / steps)
        rendered = [
            tokenizer.apply_chat_template(
                [*prompt_of(subject), {"role": "assistant", "content": text}], tokenize=False
            )
            for subject, text in rng.sample(texts, 64)
        ]
        batch = tokenizer(
            rendered,
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        )
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    path = folder / f"world-{seed}"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def world_run(model: Path, name: str, seed: int, tokens: int) -> Figures:
    rewards = [
        build(reward) if isinstance(reward, str) else build(reward[0], **reward[1])
        for reward in WORLD[name]
    ]
    completions = 64
    with tempfile.TemporaryDirectory() as folder:
        args = tiny_arguments(
            folder,
            seed=seed,
            per_device_train_batch_size=completions,
            num_generations=8,
            max_completion_length=40,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            max_steps=LONGEST_RUN,
        )
        rows = Dataset.from_list([{"prompt": prompt_of(s), "subject": s} for s in SUBJECTS] * 50)
        trainer = GRPOExtTrainer(
            str(model),
            rewards,
            args,
            rows,
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            callbacks=[TokenBudget(tokens, completions)],
        )
        trainer.train()
        samples = last_samples(Path(folder), trainer.state.global_step)
    answers = [(row["prompt"], part_of(row["text"], "answer")) for row in samples]
    return {
        "steps": trainer.state.global_step,
        "answers on the subject": mean_share(answers, on_subject),
        "English in thoughts": mean_share(
            [(row["prompt"], part_of(row["text"], "thoughts")) for row in samples], in_english
        ),
        "English in answers": mean_share(answers, in_english),
    }


def mean_share(texts: list[tuple[Any, str]], share_of: Callable[[str, list[str]], float]) -> float:
    """Return the mean of `share_of` over texts; a text without words counts as 0."""
    shares = []
    for prompt, text in texts:
        words = text.split()
        shares.append(share_of(str(prompt), words) if words else 0.0)
    return statistics.mean(shares)


def on_subject(prompt: str, words: list[str]) -> float:
    [subject] = [name for name in SUBJECTS if f"about {name}." in prompt]
    return sum(word in SUBJECTS[subject] for word in words) / len(words)


def in_english(prompt: str, words: list[str]) -> float:
    return sum(word.isascii() for word in words) / len(words)


# ---- all of them


def one_run(kind: str, model: Path, name: str, seed: int, tokens: int) -> Figures:
    torch.set_num_threads(1)
    disable_progress_bar()
    return (countdown_run if kind == "countdown" else world_run)(model, name, seed, tokens)


def all_runs(model: Path, folder: Path, quick: bool) -> dict[str, list[Figures]]:
    """Return the figures of each variant, one for each seed."""
    context = multiprocessing.get_context("spawn")
    share = 0.1 if quick else 1.0
    worlds = [world_model(folder, seed) for seed in range(1 if quick else WORLD_SEEDS)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        futures = {}
        for name in WORLD:
            tokens = int(WORLD_TOKENS * share)
            futures[name] = [
                pool.submit(one_run, "world", world, name, seed, tokens)
                for seed, world in enumerate(worlds)
            ]
        for name in COUNTDOWN:
            tokens = int(COUNTDOWN_TOKENS * share)
            futures[name] = [
                pool.submit(one_run, "countdown", model, name, seed, tokens)
                for seed in range(1 if quick else COUNTDOWN_SEEDS)
            ]
        runs = {}
        for name, of_seeds in futures.items():
            runs[name] = [future.result() for future in of_seeds]
            means = {key: statistics.mean(run[key] for run in runs[name]) for key in runs[name][0]}
            print(f"{name:22}", *(f"{key} {mean:.3f} " for key, mean in means.items()), flush=True)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, a tenth of the tokens")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        runs = all_runs(model, Path(folder), args.quick)
    print("\nwhat a signal adds, at equal generated tokens")
    verdicts = {}
    for pair in PAIRS:
        for figure in pair.figures:
            off = [run[figure] for run in runs[pair.off]]
            on = [run[figure] for run in runs[pair.on]]
            effect = mean_difference(off, on)
            verdicts[pair.on, figure] = None if effect is None else effect.verdict
            print(f"{pair.on:22} {figure:28} {as_text(effect)}")
    if args.out:
        save(args.out, {"runs": runs})
    if args.check and not args.quick:
        missed = [
            f"{name}: {figure}"
            for name, figure, verdict in MUST_CHANGE
            if verdicts[name, figure] != verdict
        ]
        if missed:
            sys.exit(f"Not as expected: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
