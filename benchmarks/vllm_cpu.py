"""Tokens per second of three samplers on a CPU: transformers' `generate`, ours, and vLLM in the same process.

    .venv-vllm/bin/python benchmarks/vllm_cpu.py [--quick] [--check] [--model FOLDER] [--out FILE]

Countdown as the demo samples it: 256 completions of at most 72 tokens, 8 a prompt, at temperature 1, from its warm-started
model, made here in a minute unless `--model` names one. Each side is called as a training step calls it, after one call that
is not counted; weights are pushed to vLLM before each, as they are in training, and that time counts. The three take turns;
figures are medians over the rounds. `--check` exits with 1 where vLLM's log-probs are not the trainer's, or ours is not faster
than transformers'. Needs `make vllm`'s environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import vllm
from countdown_runs import warm_start

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, load_recipe
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.setup_run import train_rows

ENGINES = {
    "transformers": {"fast_generate": False},
    "fast_generate": {},
    "vLLM colocate": {"use_vllm": True, "vllm_max_model_length": 192},
}


def make(folder: Path, recipe: Any, rows: int, options: dict[str, Any], output: str) -> GRPOExtTrainer:
    """A trainer that samples as `options` say; the recipe's other values do not matter to sampling."""
    args = GRPOExtConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        num_generations=8,
        max_completion_length=72,
        report_to="none",
        health_action="none",
        log_samples=0,
        **options,
    )
    trainer = GRPOExtTrainer(str(folder), ["countdown"], args, train_rows(recipe))
    trainer.model.train()
    return trainer


def sample(trainer: GRPOExtTrainer, examples: list[dict], step: int) -> tuple[int, float]:
    """Completion tokens and seconds of one generation, weight sync included."""
    prompts = [example["prompt"] for example in examples]
    template = trainer.processing_class.apply_chat_template
    ids = template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    trainer.state.global_step = step  # a new step, before which vLLM is given the weights
    start = time.perf_counter()
    completions, _ = trainer._generate_single_turn(ids, None, {}, 8)
    return sum(map(len, completions)), time.perf_counter() - start


def measure(folder: Path, rounds: int, rows: int, output: str) -> dict[str, Any]:
    """Tokens per second by engine, and how far vLLM's log-probs are from the trainer's on average."""
    recipe = load_recipe(recipe_folder() / "countdown/tiny.yaml", {"model_name_or_path": str(folder)})
    trainers = {name: make(folder, recipe, rows, options, output) for name, options in ENGINES.items()}
    data = trainers["vLLM colocate"].train_dataset
    rates: dict[str, list[float]] = {name: [] for name in ENGINES}
    for step in range(rounds + 1):
        examples = [data[(step * rows // 8 + i) % len(data)] for i in range(rows // 8) for _ in range(8)]
        for name, trainer in trainers.items():
            tokens, seconds = sample(trainer, examples, step)
            if step:
                rates[name].append(tokens / seconds)
    engine = trainers["vLLM colocate"]
    engine._generate_and_score_completions(examples)
    apart = engine._metrics["train"]["sampling/sync_difference"][-1]
    return {
        "tokens per second": {name: statistics.median(found) for name, found in rates.items()},
        "logps apart": apart,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of 64 completions instead of seven of 256")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    parser.add_argument("--model", type=Path, help="a warm-started model of the Countdown demo")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        found = measure(model, 3 if args.quick else 7, 64 if args.quick else 256, folder)
    rates = found["tokens per second"]
    for name, rate in rates.items():
        print(f"{name:14}  {rate:9,.0f} tokens/s  {rate / rates['transformers']:5.2f}")
    print(f"log-probs of vLLM and the trainer: {found['logps apart']:.1e} apart on average")
    if args.out:
        found["machine"] = f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
        found["versions"] = f"vLLM {vllm.__version__}, transformers {transformers.__version__}"
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    good = found["logps apart"] <= 1e-5 and rates["fast_generate"] > rates["transformers"]
    return 0 if good or not args.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
