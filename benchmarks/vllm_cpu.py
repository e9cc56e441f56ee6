"""How many tokens per second do transformers' `generate`, ours and vLLM sample on a CPU?

    .venv-vllm/bin/python -m benchmarks.vllm_cpu [--quick] [--check] [--model FOLDER] [--out FILE]

Samples 256 completions of tiny Countdown, 8 per prompt and at most 72 tokens each, at temperature
1. The warm-started model is made in a minute unless `--model` names one. Each sampler is called as
in a training step, after one call that is not counted. vLLM runs in the same process as the
trainer, and the time that it takes to load the weights before each call is included, as in
training. Each side runs in a separate process, on one thread, and the figures are medians over the
rounds. `--check` exits with 1 if vLLM's log-probs differ from the trainer's, or if ours is not
faster than transformers'. Needs the environment of `make vllm`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.countdown_runs import warm_start
from benchmarks.recorded import save
from grpo_ext import GRPOExtConfig, GRPOExtTrainer, load_recipe
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe
from grpo_ext.run.from_recipe import train_rows
from grpo_ext.samplers.base import Request
from grpo_ext.seams import trl as seam

ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {"fast_generate": False},
    "fast_generate": {},
    "vLLM colocate": {"use_vllm": True, "vllm_max_model_length": 192},
}


def make(
    folder: Path, recipe: Recipe, rows: int, options: dict[str, Any], output: str
) -> GRPOExtTrainer:
    """Make a trainer that samples by `options`.

    The recipe's other values do not affect sampling.
    """
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


def sample(trainer: GRPOExtTrainer, examples: list[dict[str, Any]], step: int) -> tuple[int, float]:
    """Return completion tokens and seconds of one generation, with weight sync."""
    prompts = [example["prompt"] for example in examples]
    tokenizer: Any = trainer.processing_class
    ids = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True
    )["input_ids"]
    sampler = trainer.parts.sampler
    start = time.perf_counter()
    sampler.load_weights(step)
    sampler.submit(Request(prompts, ids, 8, step))
    return sum(map(len, sampler.collect().completion_ids)), time.perf_counter() - start


def measure(engine: str, folder: Path, rounds: int, rows: int, output: str) -> dict[str, Any]:
    """Return tokens per second, and the mean difference of vLLM's log-probs from the trainer's."""
    recipe = load_recipe(
        recipe_folder() / "countdown/tiny.yaml", {"model_name_or_path": str(folder)}
    )
    trainer = make(folder, recipe, rows, ENGINES[engine], output)
    data: Any = trainer.train_dataset
    rates = []
    apart = None
    for step in range(rounds + 1):
        examples = [
            data[(step * rows // 8 + i) % len(data)] for i in range(rows // 8) for _ in range(8)
        ]
        tokens, seconds = sample(trainer, examples, step)
        rates.append(tokens / seconds)
    if trainer.use_vllm:
        trainer.parts.rollout(examples)
        apart = seam.metrics_of(trainer)["sampling/sync_difference"][-1]
    return {"rate": statistics.median(rates[1:]), "apart": apart}


def in_a_process(engine: str, words: list[str]) -> dict[str, Any]:
    """Measure in a separate process with one thread.

    VLLM changes the number of threads of its process.
    """
    command = [sys.executable, "-m", "benchmarks.vllm_cpu", "--engine", engine, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="three rounds of 64 completions instead of seven of 256",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", type=Path, help="a model that `countdown_runs.warm_start` made")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--engine", choices=ENGINES, help="measure this one alone, in this process")
    args = parser.parse_args()
    rounds, rows = (3, 64) if args.quick else (7, 256)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or warm_start(Path(folder))
        if args.engine:
            print(json.dumps(measure(args.engine, model, rounds, rows, folder)))
            return 0
        words = ["--model", str(model), *(["--quick"] if args.quick else [])]
        found = {engine: in_a_process(engine, words) for engine in ENGINES}
    plain = found["transformers"]["rate"]
    apart = found["vLLM colocate"]["apart"]
    for engine, figures in found.items():
        print(f"{engine:14}  {figures['rate']:9,.0f} tokens/s  {figures['rate'] / plain:5.2f}")
    print(f"log-probs of vLLM and the trainer: {apart:.1e} apart on average")
    if args.out:
        save(args.out, found)
    good = apart <= 1e-5 and found["fast_generate"]["rate"] > plain
    return 0 if good or not args.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
