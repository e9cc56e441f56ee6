"""Called on two ranks: what crosses the process group when a step's table is gathered.

Rank 0 writes it down.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed import distributed_c10d

from grpo_ext.objective.kept import KeptSet
from grpo_ext.run.ranks import leave_ranks
from grpo_ext.step.records import Generation, Scored, join, table_of


def table(rows: int, prompt: int, completion: int, kept: int, seed: int = 0) -> Scored:
    """A rank's table: completions of exactly so many tokens, each position with so many kept tokens
    of 32,000.
    """
    generator = torch.Generator().manual_seed(seed)
    words = lambda *shape: torch.randint(2, 32_000, shape, generator=generator)  # noqa: E731
    sets = [
        KeptSet(
            32_000,
            torch.full((completion,), kept),
            words(completion * kept).int(),
            torch.zeros(0, 4000, dtype=torch.uint8),
        )
        for _ in range(rows)
    ]
    ids = (words(rows, n).tolist() for n in (prompt, completion))
    logps = torch.randn(rows, completion, generator=generator)
    made = Generation(*ids, 0, list(logps), sets)
    return table_of(made, 0, torch.zeros(rows, dtype=torch.bool), "cpu")


def tensor_bytes(found: Scored) -> int:
    """The bytes of a table's numbers."""
    tensors = [
        value for f in fields(found) if isinstance(value := getattr(found, f.name), torch.Tensor)
    ]
    tensors += [x for kept in found.kept or [] for x in (kept.counts, kept.ids, kept.bits)]
    return sum(x.numel() * x.element_size() for x in tensors)


def expected_bytes(rows: int, prompt: int, completion: int, kept: int) -> int:
    """The same by formula: ids, masks and steps of 8 bytes, log-probs of 4, few per row.

    Per position a count and ids.
    """
    per_row = 4 + 4 + 4  # advantage, counted, signal
    return rows * (16 * prompt + 28 * completion + per_row + completion * (8 + 4 * kept))


def gather(out: Path, shape: tuple[int, int, int, int]) -> None:
    state = PartialState(cpu=True)
    crossed = []
    usual = distributed_c10d.all_gather

    def counted(outputs, own, *args, **kwargs):
        if own.dtype == torch.uint8:  # the object, not its size
            crossed.append(own.numel() + sum(x.numel() for x in outputs))
        return usual(outputs, own, *args, **kwargs)

    mine = table(*shape, seed=state.process_index)
    distributed_c10d.all_gather = counted
    whole = join(gather_object([mine.on("cpu")]))
    distributed_c10d.all_gather = usual
    pickled = distributed_c10d._object_to_tensor([mine], torch.device("cpu"), None)[0].numel()
    if dist.get_rank() == 0:
        found = {
            "crossed": crossed,
            "pickled": pickled,
            "tensors": tensor_bytes(mine),
            "rows": len(whole),
        }
        out.write_text(json.dumps(found))
    leave_ranks()
