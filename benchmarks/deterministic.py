"""Do sampler and trainer compute the same bits with `deterministic: true`, and what does it cost?

    python -m benchmarks.deterministic [--quick] [--check] [--model FOLDER] [--dtype TYPE]
        [--completions N] [--step N] [--tokens N] [--out FILE]

Samples completions under four truncations, with and without the key, scores them in micro-batches
of 16 with a backward pass, and compares the log-probs of all tokens. The model is an untrained one
of 0.5 million parameters unless `--model` names another. Prints the number of tokens whose
log-probs differ, the mean and the largest difference, and the seconds of processor time per step
for generation and for scoring with the backward pass. `--check` exits with 1 if any bit differs
with the key.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.recorded import save
from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.seams.generate import fast_generation
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer

TRUNCATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k 20": {"top_k": 20},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.1": {"min_p": 0.1},
}
MICRO_BATCH = 16
GROUP = 8


def tiny_model(folder: Path) -> Path:
    """Make an untrained model of 0.5 million parameters, and its tokenizer."""
    task = Countdown(num_problems=200, min_numbers=3, max_numbers=3, max_number=9)
    rows = countdown_demonstrations(task, 200)
    texts = [message["content"] for row in rows for part in row.values() for message in part]
    tokenizer = build_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    build_model(tokenizer).save_pretrained(folder)
    return folder


def make_trainer(args: argparse.Namespace, folder: Path, **settings: Any) -> GRPOExtTrainer:
    """Return a trainer that samples `args.step` completions per generation."""
    rows = [{"prompt": f"Use {n}, {n + 1} and 3 to make {n + 4}."} for n in range(args.step)]
    with tempfile.TemporaryDirectory() as out:
        return GRPOExtTrainer(
            AutoModelForCausalLM.from_pretrained(folder, dtype=args.dtype),
            [lambda completions, **columns: [0.0] * len(completions)],
            GRPOExtConfig(
                output_dir=out,
                per_device_train_batch_size=args.step,
                num_generations=GROUP,
                max_completion_length=args.tokens,
                gradient_checkpointing=False,
                sampler_check_share=1.0,
                report_to="none",
                use_cpu=True,
                bf16=False,
                **settings,
            ),
            Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        )


def measure(trainer: GRPOExtTrainer, completions: int) -> dict[str, float]:
    """Return the differences of all tokens, and processor time per step by kind of work."""
    trainer.model.train()
    step = trainer.args.per_device_train_batch_size
    dataset: Any = trainer.train_dataset
    differences = []
    generation = 0.0
    training = 0.0
    num_steps = -(-completions // step)
    for _ in range(num_steps):
        rows = [dict(dataset[i // GROUP]) for i in range(step)]
        start = time.process_time()
        with fast_generation(trainer.model):
            table = trainer.parts.rollout(rows)
        generated = time.process_time()
        for part_rows in torch.arange(step).split(MICRO_BATCH):
            part = table.take(part_rows)
            logps = trainer.parts.scorer.score(trainer.model, part).logps
            mask = part.completion_mask.bool()
            logps[mask].mean().backward()
            assert part.sampling_per_token_logps is not None
            differences.append((logps.detach() - part.sampling_per_token_logps)[mask].abs())
        trainer.model.zero_grad()
        generation += generated - start
        training += time.process_time() - generated
    found = torch.cat(differences)
    return {
        "tokens": found.numel(),
        "differ": int((found != 0).sum()),
        "mean": float(found.mean()),
        "max": float(found.max()),
        "generation": generation / num_steps,
        "training": training / num_steps,
    }


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="48 completions of 24 tokens")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bit differs")
    parser.add_argument("--model", type=Path, help="the folder of a model")
    parser.add_argument("--dtype", default="float32", help="the type of the weights")
    parser.add_argument("--completions", type=int, default=1000, help="of each truncation")
    parser.add_argument("--step", type=int, default=200, help="completions of a generation")
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens of a completion")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.quick:
        args.completions = args.step = 48
        args.tokens = 24
    return args


def main() -> None:
    args = parse()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model or tiny_model(Path(temporary))
        for name, truncation in TRUNCATIONS.items():
            for deterministic in (False, True):
                torch.manual_seed(0)
                settings = {**truncation, "deterministic": deterministic}
                figures = measure(make_trainer(args, folder, **settings), args.completions)
                rows.append({"truncation": name, "deterministic": deterministic, **figures})
                print(
                    f"{name:10} {'deterministic' if deterministic else 'default':14}"
                    f"{figures['differ']:7} of {figures['tokens']} tokens differ, mean "
                    f"{figures['mean']:.1e}, largest {figures['max']:.1e}; a step: generation "
                    f"{figures['generation']:.2f} s, training {figures['training']:.2f} s",
                    flush=True,
                )
    if args.out:
        save(args.out, {"dtype": args.dtype, "step": args.step, "rows": rows})
    if args.check and any(row["differ"] for row in rows if row["deterministic"]):
        sys.exit("log-probs differ with `deterministic: true`")


if __name__ == "__main__":
    main()
