"""A program: ten steps on fixed completions, on the ranks that it was started with, sharded by FSDP2 where asked to.

    sharded_run.py MODEL OUT (plain | fsdp2)

accelerate shards on GPUs alone: it leaves FSDP out where processes are on a CPU. `fully_shard` itself works there, by gloo, so
the processes are passed off as GPU ones to accelerate, and what is run is its own FSDP2 code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]

STEPS = 10
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}


def shard_on_a_cpu() -> None:
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    begin = PartialState.__init__

    def passed_off(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = passed_off


def main(folder: str, out: str, how: str) -> None:
    if how == "fsdp2":
        os.environ.update(FSDP2)
        shard_on_a_cpu()
    import invariance

    invariance.keep_order()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    settings = {"loss_type": "dapo", "beta": 0.0, "logging_steps": 1}
    trainer, _ = invariance.train(folder, out, 2, 2, ranks=ranks, steps=STEPS, learning_rate=1e-2, **settings)
    parameters = dict(trainer.model.named_parameters())
    weights = {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in parameters.items()}
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = {
        "curves": {key: [entry[key] for entry in logged] for key in ("loss", "entropy")},
        "weights": {name: p.detach().clone() for name, p in weights.items()},
        "held": {name: (p.to_local() if hasattr(p, "to_local") else p).numel() for name, p in parameters.items()},
        "sharded": trainer.is_fsdp_enabled,
        "ranks": trainer.accelerator.num_processes,
    }
    if trainer.is_world_process_zero():
        torch.save(found, Path(out) / f"{how}-{ranks}.pt")


if __name__ == "__main__":
    from grpo_ext.launch import leave_ranks

    main(*sys.argv[1:])
    leave_ranks()
