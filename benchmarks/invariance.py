"""How much does the gradient of an optimizer step change if the same completions are cut into other micro-batches?

    python -m benchmarks.invariance [--quick] [--check] [--out FILE]

For every loss, with KL: the largest relative difference of the gradient, ours and TRL's, from that of one whole batch on one
rank, over accumulation 1, 2, 4, 8, steps_per_generation at half, equal and twice of it, and one and two ranks. The completions
are fixed, some empty (not TRL's), some truncated and masked. `--check` exits with 1 if one of ours is above 1e-5.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.objective.policy import loss_names
from grpo_ext.run.ranks import leave_ranks
from grpo_ext.step.records import MicroBatch, Scored

LOSSES = loss_names()
ROWS, GROUP, LENGTH = (
    16,
    4,
    9,
)  # completions per optimizer step and per prompt; tokens per completion
Tensors = dict[str, torch.Tensor]  # weights of a model, or their gradients, by name
CUTS = [(ga, spg) for ga in (1, 2, 4, 8) for spg in (ga // 2, ga, 2 * ga) if spg]


@dataclass
class Config(GRPOConfig):
    """TRL's arguments, with our fields of the objective."""

    loss_normalization: str = "step"
    logprob_policy: str = "sampling"
    std_estimator: str = "sample"
    advantage_normalizer: str = "all"
    kl_estimator: str = "k3"
    sampler_check_share: float = 1.0


def fixed_completion(prompt: list[int], nth: int, vocab: int, eos: int) -> list[int]:
    """A completion that depends only on the prompt and its place in the group: empty, truncated, or ended."""
    g = torch.Generator().manual_seed(1000 * sum(prompt) + nth)
    kind = (sum(prompt) + nth) % 7
    length = (
        0 if kind == 0 else LENGTH if kind < 3 else int(torch.randint(1, LENGTH, (1,), generator=g))
    )
    ids = [
        x if x != eos else x + 1
        for x in torch.randint(5, vocab - 1, (length,), generator=g).tolist()
    ]
    return [*ids, eos] if kind > 2 else ids


class FixedCompletions(GRPOTrainer):
    """Replaces sampling by completions that are the same for every cut of the step."""

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        seen: dict[tuple[int, ...], int] = {}
        out = []
        for prompt in map(tuple, prompt_ids):
            seen[prompt] = seen.get(prompt, -1) + 1
            out.append(
                fixed_completion(
                    list(prompt), seen[prompt], len(self._tokenizer), self._tokenizer.eos_token_id
                )
            )
        return out, None


class Plain(FixedCompletions):
    """TRL's trainer, which takes no empty completions."""

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return [x or [self._tokenizer.eos_token_id] for x in ids], logprobs


class Exact(FixedCompletions, GRPOExtTrainer):
    """Our trainer; keeps the completions of each step as they were before they went to micro-batches."""

    used: list[Scored]

    def __init__(self, *args: Any, **kwargs: Any):
        self.used = []
        super().__init__(*args, **kwargs)
        feed = self.parts.feed
        cut = feed.cut

        def keep(slices: list[Scored]) -> list[MicroBatch]:
            self.used.extend(slices)
            return cut(slices)

        feed.cut = keep


class Catch(TrainerCallback):
    """Records the gradients of each optimizer step, and the weights before it."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensors, Tensors]] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name.removeprefix("module."), p) for name, p in model.named_parameters()]
        self.steps.append(
            (
                {n: p.grad.clone() for n, p in named if p.grad is not None},
                {n: p.detach().clone() for n, p in named},
            )
        )


def lucky(completions: Any, completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
    """A number that the completion determines."""
    return [float((7 * sum(ids) + len(ids)) % 5) for ids in completion_ids]


def train(
    folder: Path | str,
    out: Path | str,
    ga: int,
    spg: int,
    *,
    trainer_class: type[FixedCompletions] = Exact,
    config: type[GRPOConfig] = Config,
    ranks: int = 1,
    steps: int = 1,
    ref_noise: float = 0.02,
    numbers: Any = range(1, 17),
    **settings: Any,
) -> tuple[Any, list[tuple[Tensors, Tensors]]]:
    """Train on fixed completions.

    Args:
        folder: of the model and its tokenizer.
        out: folder for TRL.
        ga, spg: accumulation and steps_per_generation.
        ref_noise: standard deviation of the noise on the reference's weights.
        numbers: the prompts are made from these, in this order.

    Returns:
        the trainer, and the gradients and weights of each optimizer step.
    """
    args = config(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=ROWS // (ga * ranks),
        gradient_accumulation_steps=ga,
        steps_per_generation=spg,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        learning_rate=settings.pop("learning_rate", 1e-3),
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=3,
        **settings,
    )
    catch = Catch()
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=[lucky],
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in numbers]
        ),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        callbacks=[catch],
    )
    if trainer.ref_model is not None:
        g = torch.Generator().manual_seed(9)
        for p in trainer.ref_model.parameters():
            p.data.add_(ref_noise * torch.randn(p.shape, generator=g))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer, catch.steps


def keep_order() -> None:
    """Without a shuffle the first step has the same completions for every cut of the generations."""
    import trl.trainer.grpo_trainer as module

    from grpo_ext.step import feed

    module.shuffle_sequence_dict = lambda seq_dict: seq_dict
    feed.random_order = lambda rows: torch.arange(rows)


def apart(a: Tensors, b: Tensors) -> float:
    """Return the relative difference of two gradients."""
    x, y = (torch.cat([g[name].flatten().double() for name in sorted(a)]) for g in (a, b))
    assert y.norm() > 0
    return float((x - y).norm() / y.norm())


def first_of_two_ranks(ga: int, spg: int) -> list[int]:
    """Return the prompts whose completions two ranks put into their first step, followed by the rest."""
    if spg <= ga:
        return list(range(1, 17))
    return [1, 2, 5, 6, 3, 4, *range(7, 17)]  # each rank holds two steps' worth of a generation


def settings_for(loss_type: str, ours: bool) -> dict[str, Any]:
    """Return settings with KL and masked truncated completions."""
    settings = {"loss_type": loss_type, "beta": 0.1, "mask_truncated_completions": True}
    settings |= {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    return settings | (
        {} if ours else {"loss_normalization": "micro_batch", "logprob_policy": "trl"}
    )


def gradient(
    folder: Path | str, loss_type: str, ga: int, spg: int, ours: bool = True, **kwargs: Any
) -> Tensors:
    """Return the gradient of the first step."""
    with tempfile.TemporaryDirectory() as out:
        trainer_class = Exact if ours else Plain
        kwargs = settings_for(loss_type, ours) | kwargs
        return train(folder, out, ga, spg, trainer_class=trainer_class, **kwargs)[1][0][0]


def on_two_ranks(
    folder: Path | str, jobs: list[tuple[str, int, int, bool, float]]
) -> list[Tensors]:
    """Return the first step's gradients on two gloo processes, for (loss_type, ga, spg, ours, beta)."""
    with tempfile.TemporaryDirectory() as out:
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            "2",
            "--master_port",
            "0",
        ]
        launch += [
            "--rdzv_backend",
            "c10d",
            "--rdzv_endpoint",
            "127.0.0.1:0",
            "-m",
            "benchmarks.invariance",
        ]
        launch += ["--rank_jobs", json.dumps(jobs)]
        root = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        done = subprocess.run(
            [*launch, "--model", str(folder), "--out", out],
            env=environment,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return torch.load(Path(out) / "gradients.pt")


def one_of_two_ranks(
    folder: Path | str, jobs: list[tuple[str, int, int, bool, float]], out: Path
) -> None:
    """What each of two ranks does for `on_two_ranks`; the first saves the gradients in `out`."""
    keep_order()
    found = [
        gradient(folder, loss, ga, spg, ours, ranks=2, beta=beta)
        for loss, ga, spg, ours, beta in jobs
    ]
    if int(os.environ["RANK"]) == 0:
        torch.save(found, out / "gradients.pt")
    leave_ranks()


def measure(
    folder: Path, losses: tuple[str, ...], cuts: list[tuple[int, int]], two_ranks: bool
) -> list[dict[str, Any]]:
    """Return one row per loss: the largest difference over the cuts, ours and TRL's, on one and on two ranks."""
    table = []
    for loss_type in losses:
        row: dict[str, Any] = {"loss_type": loss_type}
        for ours in (True, False):
            whole = gradient(folder, loss_type, 1, 1, ours)
            one = [apart(gradient(folder, loss_type, ga, spg, ours), whole) for ga, spg in cuts]
            row["ours" if ours else "TRL"] = max(one)
            if two_ranks:
                jobs = [(loss_type, ga, spg, ours, 0.1) for ga, spg in cuts]
                two = []
                for (_, ga, spg, _, _), found in zip(jobs, on_two_ranks(folder, jobs), strict=True):
                    same = gradient(
                        folder, loss_type, 1, 1, ours, numbers=first_of_two_ranks(ga, spg)
                    )
                    two.append(apart(found, same))
                row["ours, 2 ranks" if ours else "TRL, 2 ranks"] = max(two)
        table.append(row)
        print(
            "  ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{v:8}" for k, v in row.items()),
            flush=True,
        )
    return table


def tiny_model(folder: Path) -> Path:
    """Make an untrained model of 0.1 million parameters, and its tokenizer."""
    from grpo_ext.tasks.countdown import Countdown
    from grpo_ext.tiny.demonstrations import countdown_demonstrations
    from grpo_ext.tiny.model import build_model
    from grpo_ext.tiny.tokenizer import build_tokenizer

    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
    )
    rows = countdown_demonstrations(task, 200)
    tokenizer = build_tokenizer(
        [message["content"] for row in rows for part in row.values() for message in part]
    )
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two losses, three cuts, one rank")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a difference of ours is above 1e-5"
    )
    parser.add_argument("--out", type=Path, help="write the table as JSON")
    parser.add_argument("--rank_jobs", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    transformers_logging.disable_progress_bar()
    keep_order()
    if args.rank_jobs:
        return one_of_two_ranks(args.model, args.rank_jobs, args.out)
    with tempfile.TemporaryDirectory() as folder:
        losses, cuts = (
            (("grpo", "dapo"), [(2, 1), (4, 4), (4, 8)]) if args.quick else (LOSSES, CUTS)
        )
        table = measure(tiny_model(Path(folder)), losses, cuts, two_ranks=not args.quick)
    if args.out:
        args.out.write_text(json.dumps(table, indent=1) + "\n")
    worst = max(v for row in table for k, v in row.items() if k.startswith("ours"))
    if args.check and worst > 1e-5:
        sys.exit(f"gradients differ by {worst:.1e}")


if __name__ == "__main__":
    main()
