"""Steps on several ranks of a CPU that share a model out, by FSDP2 or ZeRO; `launched` starts them.

accelerate shards on GPUs only: with `use_cpu` it leaves both out, whatever the ranks are told.
`shard_on_a_cpu` passes its ranks on a CPU off as what those branches ask for. All that follows,
`fully_shard` and DeepSpeed's engine with its collectives among them, is the real one on the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import torch

from tests.support.forked import LIMIT, on_ranks
from tests.support.logs import entries_with

STEPS = 10
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
BY_THE_TRAINER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)


def launched(
    how: str, ranks: int, out: Path, *words: str, environment: dict[str, str] | None = None
) -> str:
    """Call `main` on so many ranks; what was printed. Torch's launcher starts those of ZeRO, in
    DeepSpeed's environment.

    Args:
        how: `plain`, `fsdp2`, `zero2` or `zero3`. words: `steps FOLDER`, the model's; `guard
        FOLDER`; or `train` and the words of `grpo_ext.train`.
    """
    if not how.startswith("zero"):
        return on_ranks(ranks, main, how, str(out), *words)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    launch += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:0"]
    launch += ["-m", "tests.support.sharded_run"]
    done = subprocess.run(
        [*launch, how, str(out), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**(environment or os.environ), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def ten_steps(model: Path, out: Path, how: str, ranks: int) -> dict:
    """What `steps` found, of all that is asked whether it really was so."""
    launched(how, ranks, out, "steps", str(model))
    found = torch.load(out / f"{how}-{ranks}.pt")
    assert found["ranks"] == ranks and found["sharded"] == (how != "plain")
    assert all(len(curve) == STEPS for curve in found["curves"].values())
    return found


def check_same(one: dict, two: dict, share: float) -> None:
    """Two ranks learned what one did, and each held `share` of the model between steps."""
    size = sum(weight.numel() for weight in one["weights"].values())
    assert abs(two["held"] / size - share) < 0.01
    for name, curve in one["curves"].items():
        torch.testing.assert_close(
            torch.tensor(two["curves"][name]), torch.tensor(curve), atol=1e-5, rtol=0
        )
    assert two["weights"].keys() == one["weights"].keys()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-5, rtol=0)


def shard_on_a_cpu(how: str, out: Path) -> None:
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    if how == "plain":
        return
    if how == "fsdp2":
        os.environ.update(FSDP2)
        passed_off_as = DistributedType.MULTI_GPU
    else:
        config = out / f"{how}.json"
        zero = {"stage": int(how[-1]), "stage3_gather_16bit_weights_on_model_save": True}
        # the tiny model's tensors are so small that ZeRO-3 would leave them whole
        zero["stage3_param_persistence_threshold"] = 0
        config.write_text(
            json.dumps({"zero_optimization": zero, **dict.fromkeys(BY_THE_TRAINER, "auto")})
        )
        use = {
            "USE_DEEPSPEED": "true",
            "DEEPSPEED_CONFIG_FILE": str(config),
            "MIXED_PRECISION": "no",
        }
        os.environ |= {f"ACCELERATE_{name}": value for name, value in use.items()} | {
            "DS_ACCELERATOR": "cpu"
        }
        passed_off_as = DistributedType.DEEPSPEED
        from deepspeed.comm import torch as deepspeed_comm

        deepspeed_comm.build_shm_op = lambda: (
            None
        )  # compiled at first use; gloo's collectives do as well
    begin = PartialState.__init__

    def passed_off(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = passed_off_as

    PartialState.__init__ = passed_off


def steps(folder: str, out: Path, how: str) -> None:
    from tests.support import fixed_completions

    fixed_completions.keep_order()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    settings = {"loss_type": "dapo", "beta": 0.0, "logging_steps": 1}
    trainer, _ = fixed_completions.train(
        folder, out, 2, 2, ranks=ranks, steps=STEPS, learning_rate=1e-2, **settings
    )
    parameters = dict(trainer.model.named_parameters())
    logged = entries_with(trainer, "loss")
    found = {
        "curves": {key: [entry[key] for entry in logged] for key in ("loss", "entropy")},
        "held": sum(held(p).numel() for p in parameters.values()),
        "sharded": trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled,
        "ranks": trainer.accelerator.num_processes,
    }
    with whole(trainer, how):
        weights = {
            n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in parameters.items()
        }
        found["weights"] = {name: p.detach().clone() for name, p in weights.items()}
    if how.startswith("zero"):
        assert trainer.model_wrapped.zero_optimization_stage() == int(how[-1])
    if trainer.is_world_process_zero():
        torch.save(found, out / f"{how}-{ranks}.pt")


def guard(folder: str, out: Path) -> None:
    """Two steps with a NaN loss on the last rank change nothing on any."""
    from transformers import TrainerCallback

    from tests.support import resumed_run

    class Seen(TrainerCallback):
        weights: ClassVar = {}

        def on_step_end(self, args, state, control, model, **kwargs):
            self.weights[state.global_step] = torch.cat(
                [held(p).detach().flatten() for p in model.parameters()]
            )

    trainer = resumed_run.make(folder, out, save_strategy="no", callbacks=[Seen()])
    loss = trainer._compute_loss
    last = trainer.accelerator.num_processes - 1

    def spoilt(model, inputs):
        bad = trainer.state.global_step + 1 in (3, 4) and trainer.accelerator.process_index == last
        return loss(model, inputs) * (float("nan") if bad else 1.0)

    trainer._compute_loss = spoilt
    trainer.train()
    seen = Seen.weights
    assert trainer.parts.finite.skipped == 2 and seen[8].isfinite().all()
    assert torch.equal(seen[2], seen[4]) and not torch.equal(seen[4], seen[5])


def held(parameter: torch.Tensor) -> torch.Tensor:
    """What of a parameter lies on this rank."""
    if hasattr(parameter, "to_local"):
        return parameter.to_local()
    return getattr(parameter, "ds_tensor", parameter)


def whole(trainer, how: str):
    """ZeRO-3's parameters are empty but where they are gathered."""
    if how != "zero3":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(trainer.model.parameters()))


def main(how: str, out: str, what: str, *words: str) -> int:
    from grpo_ext.run.ranks import leave_ranks

    shard_on_a_cpu(how, Path(out))
    if what == "train":
        from grpo_ext.train import main as train

        return train(list(words))
    if what == "guard":
        guard(*words, Path(out))
    else:
        steps(*words, Path(out), how)
    leave_ranks()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
