"""How much GPU memory does each way of training take, by the formulas of `grpo_ext.recipe.memory`?

    python -m benchmarks.memory [--quick] [--check]

Prints the table of the docs. It is for Qwen2.5's shapes in bfloat16 with AdamW, gradient
checkpointing and no KL, in micro-batches of 8 completions of 256 + 1,024 tokens. `--check` trains
three tiny models (one with `--quick`) for a step, counts the bytes of weights, gradients and
optimizer state, and exits with 1 if they differ from the formulas.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from grpo_ext import load_recipe
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.memory import ModelSize, memory_estimate

GIB = 2**30
# parameters, hidden size, layers, key-value width, parameters of an adapter of rank 16 on all
# linear layers
SHAPES = {
    "0.5B": (494_032_768, 896, 24, 128, 8_798_208),
    "1.5B": (1_543_714_304, 1536, 28, 256, 18_464_768),
    "3B": (3_085_938_688, 2048, 36, 256, 29_933_568),
    "7B": (7_615_616_512, 3584, 28, 512, 40_370_176),
    "14B": (14_770_033_664, 5120, 48, 1024, 68_812_800),
    "32B": (32_763_876_352, 5120, 64, 1024, 134_217_728),
}
WAYS = {  # LoRA, sharding (see memory_estimate), GPUs
    "LoRA, 1 GPU": (True, 0, 1),
    "full, 1 GPU or DDP": (False, 0, 1),
    "ZeRO-3, 4 GPUs": (False, 3, 4),
    "FSDP2, 4 GPUs": (False, 4, 4),
    "FSDP2, 8 GPUs": (False, 4, 8),
}
RECIPE = {
    **{
        "model_name_or_path": "m",
        "dtype": "bfloat16",
        "use_vllm": True,
        "gradient_checkpointing": True,
        "beta": 0.0,
    },
    **{"per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 1024},
}


def estimates(shape: tuple[int, ...], way: tuple[bool, int, int]) -> dict[str, int]:
    """Return the bytes on each GPU, by part."""
    parameters, hidden, layers, width, adapter = shape
    lora, sharding, gpus = way
    size = ModelSize(parameters, adapter if lora else parameters, "bfloat16", hidden, layers, width)
    v = load_recipe(None, {**RECIPE, "use_peft": lora}, gpus).flat
    return memory_estimate(size, v, batch_of(v, gpus), sharding, prompt=256)


def table() -> str:
    """Return the GiB per GPU, in Markdown."""
    lines = [f"| | {' | '.join(WAYS)} | engine |", "|---" * (len(WAYS) + 2) + "|"]
    for name, shape in SHAPES.items():
        parts = [estimates(shape, way) for way in WAYS.values()]
        engine = (
            2 * shape[0] + 2 * shape[2] * shape[3] * 2 * 64 * 1280
        )  # weights, and the cache of 64 completions
        cells = [f"{part['total'] / GIB:.0f}" for part in parts] + [f"{engine / GIB:.0f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measured(folder: Path, lora: bool, dtype: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes that a tiny run holds after a step, and those by the formulas."""
    from grpo_ext.preflight.forecast import model_size
    from grpo_ext.train import make_trainer

    values: dict[str, Any] = {
        **{
            "model_name_or_path": str(folder),
            "output_dir": str(folder / "run"),
            "use_cpu": True,
            "bf16": False,
        },
        **{
            "dtype": dtype,
            "use_peft": lora,
            "lora_target_modules": ["all-linear"],
            "max_steps": 1,
            "report_to": "none",
        },
        **{
            "per_device_train_batch_size": 8,
            "max_completion_length": 8,
            "num_problems": 64,
            "save_strategy": "no",
        },
        **{
            "health_action": "none",
            "disable_tqdm": True,
            "reward_funcs": ["format"],
            "log_samples": 0,
        },
    }
    recipe = load_recipe(None, values)
    trainer = make_trainer(recipe)
    trainer.train()
    weights = {id(p): p for p in trainer.model.parameters()}.values()
    trained = [p for p in weights if p.requires_grad]
    optimizer: Any = trainer.optimizer
    found = {
        "weights": sum(p.nbytes for p in weights if lora is False or not p.requires_grad),
        "gradients": sum(p.nbytes for p in trained),
        "optimizer": sum(
            t.nbytes
            for p in trained
            for k, t in optimizer.state[p].items()
            if k.startswith("exp_avg")
        ),
    }
    size = model_size(recipe.flat, recipe.model)
    assert size is not None
    said = memory_estimate(size, recipe.flat, batch_of(recipe.flat, 1))
    return found, {name: said[name] for name in found}


def check(quick: bool) -> bool:
    from grpo_ext.tasks.countdown import Countdown
    from grpo_ext.tiny.demonstrations import countdown_demonstrations
    from grpo_ext.tiny.model import build_model
    from grpo_ext.tiny.tokenizer import build_tokenizer

    good = True
    for lora, dtype in [(False, "float32"), (True, "float32"), (False, "bfloat16")][
        : 1 if quick else 3
    ]:
        with tempfile.TemporaryDirectory() as folder:
            rows = countdown_demonstrations(Countdown(), 100)
            tokenizer = build_tokenizer(
                [m["content"] for row in rows for part in row.values() for m in part]
            )
            tokenizer.save_pretrained(folder)
            build_model(tokenizer).save_pretrained(folder)
            found, said = measured(Path(folder), lora, dtype)
        print(f"{'LoRA' if lora else 'full'}, {dtype}: held {found}, formula {said}")
        good &= all(abs(found[name] - said[name]) <= 0.01 * found[name] for name in found)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    print(table())
    return 0 if not args.check or check(args.quick) else 1


if __name__ == "__main__":
    raise SystemExit(main())
