"""How much faster is transformers' `generate` with `fast_generate`, on the same prompts?

    python -m benchmarks.generate [--quick] [--check] [--model FOLDER] [--out FILE]
    python -m benchmarks.generate --pretrained [--quick] [--check] [--out FILE]

Both sides call `generate` as TRL does. There are four shapes:

- tiny Countdown, with a warm-started model that is made in a minute unless `--model` names one;
- long completions of uneven length: lognormal with mean 350, at most 1,024 tokens, after prompts of
  150 tokens, with a vocabulary of 32k;
- completions of equal length after distinct prompts, where nothing can be gained;
- a single row.

Where the model does not determine the lengths, they are scripted. Both sides alternate, and the
figures are medians over the rounds. `--check` exits with 1 if ours is not as much faster as it
should be. `--pretrained` instead uses SmolLM2-135M-Instruct in bfloat16 with the prompts of
`grpo-ext demo real`, on one thread and in seconds of processor time. Predictions before the first
run: 2.3 times as fast on Countdown, 2.5 on long completions, 1.0 at equal lengths.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessorList

from benchmarks.recorded import save
from grpo_ext.demo.smollm2 import WheelMissing, save_smollm2
from grpo_ext.seams.generate import fast_generation

AT_LEAST = {
    "countdown": 2.5,
    "long": 1.8,
    "equal lengths": 0.97,
    "one row": 0.97,
    "SmolLM2": 1.5,
}
EOS = 1
PAD = 0


class Lengths:
    """A logits processor that makes row i end exactly at its `lengths[i]`-th token."""

    def __init__(self, lengths: torch.Tensor, prompt: int):
        self.lengths, self.prompt = lengths, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        last = self.lengths <= input_ids.size(1) - self.prompt + 1  # (b,)
        scores = scores.masked_fill(last.unsqueeze(1), -torch.inf)
        scores[:, EOS] = torch.where(last, 0.0, -torch.inf)
        return scores

    def select_rows(self, input_ids: torch.LongTensor, rows: torch.LongTensor) -> None:
        self.lengths = self.lengths[rows]


class Shape:
    """A model, a batch of prompts, and the further arguments of `generate`."""

    def __init__(
        self,
        model: Any,
        batch: dict[str, torch.Tensor],
        max_new_tokens: int,
        eos: list[int],
        pad: int,
    ):
        self.model, self.batch, self.eos = model.train(), batch, eos  # TRL samples in training mode
        self.lengths: torch.Tensor | None = None
        self.config = GenerationConfig(
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=eos,
            pad_token_id=pad,
            disable_compile=True,
        )

    def run(self, fast: bool, seed: int) -> dict[str, float]:
        """Return seconds, tokens and decoded slots of one call."""
        prompt = self.batch["input_ids"].size(1)
        scripted = (
            None if self.lengths is None else LogitsProcessorList([Lengths(self.lengths, prompt)])
        )
        passes: list[int] = []
        hook = self.model.register_forward_pre_hook(
            lambda module, args, kwargs: passes.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
        torch.manual_seed(seed)
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        with fast_generation(self.model) if fast else nullcontext():
            ids = self.model.generate(
                **self.batch, generation_config=self.config, logits_processor=scripted
            )[:, prompt:]
        seconds = clock() - start
        hook.remove()
        ended = torch.isin(ids, torch.tensor(self.eos)).int()
        tokens = int((ended.cumsum(1) - ended == 0).sum())
        return {
            "seconds": seconds,
            "tokens": tokens,
            "slots": ids.numel() if not fast else len(ids) + sum(passes[1:]),
        }


def small_model(vocab: int, hidden: int, layers: int = 2) -> Any:
    """An untrained Qwen3."""
    config = transformers.AutoConfig.for_model(
        "qwen3",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def random_prompts(num: int, length: int, vocab: int, group: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, vocab, (num, length), generator=torch.Generator().manual_seed(0))
    ids = ids.repeat_interleave(group, 0)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def of_recipe(
    name: str,
    folder: str,
    num_prompts: int,
    max_new_tokens: int,
    dtype: torch.dtype,
) -> Shape:
    """The first prompts of a recipe, 8 completions each.

    Args:
        name: the recipe.
        folder: the folder of the model.
        num_prompts: how many prompts to take.
        max_new_tokens: the longest completion.
        dtype: the dtype of the weights.
    """
    from grpo_ext.recipe.folder import recipe_folder
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.run.from_recipe import train_rows

    recipe = load_recipe(recipe_folder() / name, {"model_name_or_path": folder})
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = train_rows(recipe).select(range(num_prompts))
    prompts = [row["prompt"] for row in rows for _ in range(8)]
    encoded: Any = tokenizer.apply_chat_template(
        prompts,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        padding=True,
        return_tensors="pt",
    )
    batch = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    end_tokens = [tokenizer.eos_token_id]
    return Shape(model, batch, max_new_tokens, end_tokens, tokenizer.pad_token_id)


def countdown(folder: str) -> Shape:
    """32 problems, 8 completions each, at most 72 tokens."""
    return of_recipe("countdown/tiny.yaml", folder, 32, 72, torch.float32)


def smollm2(folder: str) -> Shape:
    """12 instructions for SmolLM2-135M-Instruct, 8 completions each, at most 64 tokens."""
    return of_recipe("instructions/smollm2.yaml", folder, 12, 64, torch.bfloat16)


def long_uneven(quick: bool) -> Shape:
    """2 prompts of 150 tokens, 8 completions each.

    Lengths are lognormal with mean 350, at most 1,024 tokens; with `quick`, a quarter of these.
    """
    scale = 0.25 if quick else 1.0
    vocab = 32_000
    limit = int(1024 * scale)
    shape = Shape(small_model(vocab, 128), random_prompts(2, 150, vocab, 8), limit, [EOS], PAD)
    normal = torch.randn(16, generator=torch.Generator().manual_seed(0))
    lengths = (350 * scale * (0.8 * normal - 0.32).exp()).round().clamp(1, limit)
    shape.lengths = lengths.long()
    return shape


def equal_lengths(rows: int) -> Shape:
    """Distinct prompts of 28 tokens, with 72 tokens after each."""
    shape = Shape(small_model(341, 96), random_prompts(rows, 28, 341, 1), 72, [EOS], PAD)
    shape.lengths = torch.full((rows,), 72)
    return shape


def warm_started(folder: Path, quick: bool) -> str:
    """Return the tiny model after its supervised warm start.

    With `quick`, the warm start has a quarter of the steps.
    """
    from benchmarks.countdown_runs import SFT_STEPS, warm_start

    return str(warm_start(folder, steps=SFT_STEPS // (4 if quick else 1)))


def compare(name: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """Return the medians of both sides, which alternate."""
    found: dict[str, list[dict[str, float]]] = {"transformers": [], "ours": []}
    for side in found:
        shape.run(side == "ours", seed=99)  # warms up
    for seed in range(rounds):
        for side, runs in found.items():
            runs.append(shape.run(side == "ours", seed))
    row: dict[str, Any] = {"shape": name, "rounds": rounds, "rows": len(shape.batch["input_ids"])}
    for side, runs in found.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        tokens, slots = (sum(run[key] for run in runs) for key in ("tokens", "slots"))
        rate = statistics.median(run["tokens"] / run["seconds"] for run in runs)
        row[side] = {
            "seconds": seconds,
            "tokens_per_second": rate,
            "wasted_slots": 1 - tokens / slots,
        }
    # at the same number of tokens: the two sides draw different completions
    row["faster"] = row["ours"]["tokens_per_second"] / row["transformers"]["tokens_per_second"]
    print(
        f"{name:14} {row['rows']:4} rows  transformers {row['transformers']['seconds']:.3f} s, "
        f"{row['transformers']['wasted_slots']:.1%} of its slots wasted; ours "
        f"{row['ours']['seconds']:.3f} s, "
        f"{row['ours']['wasted_slots']:.1%}; {row['faster']:.2f} times the tokens per second",
        flush=True,
    )
    return row


def peak_memory(quick: bool) -> dict[str, float]:
    """Return the MiB that the long shape takes beyond a loaded model, by side.

    Each side runs in a separate process.
    """
    peaks = {}
    for side in ("neither", "transformers", "ours"):
        command = [
            sys.executable,
            "-m",
            "benchmarks.generate",
            "--peak",
            side,
            *(["--quick"] if quick else []),
        ]
        peaks[side] = (
            int(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[
                    -1
                ]
            )
            / 1024
        )
    above = {side: peaks[side] - peaks["neither"] for side in ("transformers", "ours")}
    print(
        f"peak memory, long, above a loaded model: "
        f"{', '.join(f'{k} {v:.0f} MiB' for k, v in above.items())}"
    )
    return above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="three rounds, shorter long completions, a shorter warm start",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--model", help="a model that `countdown_runs.warm_start` made")
    parser.add_argument(
        "--pretrained", action="store_true", help="SmolLM2-135M-Instruct, in its wheel"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--peak", choices=("neither", "transformers", "ours"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.peak:
        shape = long_uneven(args.quick)
        if args.peak != "neither":
            shape.run(args.peak == "ours", 0)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    rounds = 3 if args.quick else 5
    if args.pretrained:
        pretrained(rounds, args)
        return
    memory = peak_memory(args.quick)  # first: a process counts its parent's peak as its own
    with tempfile.TemporaryDirectory() as folder:
        shapes: dict[str, Callable[[], Shape]] = {
            "countdown": lambda: countdown(args.model or warm_started(Path(folder), args.quick)),
            "long": lambda: long_uneven(args.quick),
            "equal lengths": lambda: equal_lengths(256),
            "one row": lambda: equal_lengths(1),
        }
        table = [
            compare(name, make(), rounds * (5 if name == "one row" else 1))
            for name, make in shapes.items()
        ]
    if args.out:
        save(args.out, {"table": table, "peak_memory_mib": memory})
    missed = too_slow(table)
    if memory["ours"] > 1.05 * memory["transformers"]:
        missed.append("memory")
    if args.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


def pretrained(rounds: int, args: argparse.Namespace) -> None:
    """Compare both sides on SmolLM2-135M-Instruct; print a message if its wheel is missing."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_smollm2(Path(folder))
        except WheelMissing as error:
            print(f"skipped: {error}")
            return
        table = [compare("SmolLM2", smollm2(folder), rounds)]
    if args.out:
        save(args.out, {"table": table})
    if args.check and too_slow(table):
        sys.exit("missed: SmolLM2")


def too_slow(table: list[dict[str, Any]]) -> list[str]:
    """Return the shapes at which ours is not as much faster as it should be."""
    return [row["shape"] for row in table if row["faster"] < AT_LEAST[row["shape"]]]


if __name__ == "__main__":
    main()
