"""Called on two ranks: steps of TRL and of ours on two ranks, and what each rank called.

Rank 0 writes it down.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from grpo_ext.run.ranks import leave_ranks
from tests.support.step_bench import Bench
from tests.support.step_work import Case

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "barrier",
)
# prompts and completions of very different lengths, so that ranks hold rows of different sizes
UNEVEN = Case(32, 16, 4, (10, 140), (25, 0.9, 60), 0.25, 300, hidden=32)
VARIANTS = {
    "shared prompts": {},
    "KL, two updates": {"beta": 0.1, "num_iterations": 2},
    "packed": {"layout": "packed"},
    "packed, KL": {"layout": "packed", "beta": 0.1},
    "cut": {"max_tokens_per_micro_batch": 250},
    "cut and packed": {"max_tokens_per_micro_batch": 250, "layout": "packed", "beta": 0.1},
}


def counted(calls: Counter, name: str):
    original = getattr(dist, name)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        calls[name] += 1
        return original(*args, **kwargs)

    return wrapper


def compare(out: Path) -> None:
    torch.set_num_threads(1)
    calls: Counter = Counter()
    for name in COLLECTIVES:
        setattr(dist, name, counted(calls, name))
    found = {}
    for name, settings in VARIANTS.items():
        bench = Bench(replace(UNEVEN, settings=tuple(settings.items())), ranks=2)
        plain = bench.step("TRL")[2]
        trainer = bench.trainers["ours"]
        tokens = []
        loss = trainer._compute_loss

        def noted(model, inputs, loss=loss, tokens=tokens):
            tokens.append(int(inputs.rows.attention_mask.sum()))
            return loss(model, inputs)

        trainer._compute_loss = noted
        calls.clear()
        ours = bench.step("ours")[2]
        mine = {
            "calls": dict(calls),
            "tokens": tokens,
            "apart": float((ours - plain).abs().max() / plain.abs().max()),
        }
        both = [None, None]
        dist.all_gather_object(both, mine)
        found[name] = both
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    del bench, trainer, loss
    leave_ranks()
