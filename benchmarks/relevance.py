"""Does the reward `relevance` recognize meaning? It matches last lines of quatrains to their poems.

    python -m benchmarks.relevance QUATRAINS.jsonl [--quick] [--check]

Each row of the file has `lines`, a list of four; a run takes some minutes on two cores. A tiny
causal model learns whole quatrains, except those that are held out, each time with their lines in
another order, so that it learns which characters go together and not the poems themselves. Then
`relevance` scores the last line of each held-out poem after the first three lines of this poem and
of seven others of the same length. Each of these eight prompts is compared with the other seven,
and the line is matched to the prompt with the best score. One of eight is right by chance.
`--quick` does less work, which teaches the model nothing. `--check` exits with 1 unless the result
is better than chance by two standard errors.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

from grpo_ext.rewards import build
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.optimizer import MuonWithAdamW
from grpo_ext.tiny.tokenizer import CHARACTERS, build_tokenizer

CHOICES = 8
HELD_OUT = 400
STEPS = 400


def prompt_of(lines: list[str]) -> str:
    return "，".join(lines[:3]) + "，"


def train(poems: list[list[str]], folder: Path, steps: int, seed: int) -> float:
    """Train a model on whole poems, save it with its tokenizer, and return the loss at the end."""
    tokenizer = build_tokenizer(
        [prompt_of(lines) + lines[3] for lines in poems], 7000, pattern=CHARACTERS
    )
    model = build_model(tokenizer, seed=seed)
    optimizer = MuonWithAdamW(model, lr=3e-3)
    generator = random.Random(seed)
    loss = torch.tensor(0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps)
        shuffled = [generator.sample(lines, 4) for lines in generator.sample(poems, 64)]
        texts = [prompt_of(lines) + lines[3] for lines in shuffled]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        positions = (batch.attention_mask.cumsum(1) - 1).clamp(min=0)
        loss = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=positions,
            labels=labels,
        ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return loss.item()


def retrieved(poems: list[list[str]], folder: Path, seed: int) -> list[bool]:
    """Return, for each poem, whether its last line is matched to its own first three lines."""
    generator = random.Random(seed)
    right = []
    for lines in poems:
        same_length = [
            other for other in poems if other is not lines and len(other[0]) == len(lines[0])
        ]
        prompts = [prompt_of(lines)]
        prompts += list(map(prompt_of, generator.sample(same_length, CHOICES - 1)))
        reward = build("relevance", model=str(folder), unrelated=prompts, num_unrelated=CHOICES - 1)
        scores = reward(completions=[lines[3]] * CHOICES, prompts=prompts)
        own, *others = [score or 0.0 for score in scores]
        right.append(own > max(others))
    return right


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("quatrains", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    held_out = HELD_OUT // 8 if args.quick else HELD_OUT
    steps = args.steps // 20 if args.quick else args.steps
    rows = map(json.loads, args.quatrains.read_text(encoding="utf-8").splitlines())
    poems = [row["lines"] for row in rows]
    random.Random(args.seed).shuffle(poems)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        loss = train(poems[held_out:], Path(folder), steps, args.seed)
        seconds = time.perf_counter() - start
        right = retrieved(poems[:held_out], Path(folder), args.seed)
    share = sum(right) / len(right)
    error = (share * (1 - share) / len(right)) ** 0.5
    print(f"{steps} steps in {seconds:.0f} s, loss {loss:.2f}")
    print(f"own poem out of {CHOICES}: {share:.3f} ± {error:.3f} of {len(right)} lines")
    print(f"by chance: {1 / CHOICES:.3f}")
    return int(args.check and share - 2 * error <= 1 / CHOICES)


if __name__ == "__main__":
    sys.exit(main())
