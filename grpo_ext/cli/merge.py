"""`grpo-ext merge`: merge an adapter into its base model, for transformers and vLLM.

examples:
  grpo-ext merge --model runs/poem-qwen2.5-7b-lora      write runs/poem-qwen2.5-7b-lora/merged
  grpo-ext merge --model runs/poem-qwen2.5-7b-lora/checkpoint-300 --out models/poem --dtype float32

It loads the merged model again, and keeps it only if its log-probs match those of the base model
with the adapter.
"""

import argparse
from pathlib import Path

from grpo_ext.cli.command import add_command


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_command(subparsers, __doc__, run).add_argument
    add(
        "--model",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="folder of the adapter: an output_dir, or a checkpoint",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for the merged model (default: `merged` in the adapter's folder)",
    )
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="dtype of the weights (default: that of the base model; float16 and bfloat16 may "
        "round them)",
    )
    add("--trust_remote_code", action="store_true", help="run code that comes with the base model")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.common.adapters import MERGED
    from grpo_ext.run.merge_adapter import merge_adapter

    out = args.out or args.model / MERGED
    difference = merge_adapter(args.model, out, args.dtype, args.trust_remote_code)
    print(
        f"Merged into {out}. The log-probs differ from those of the base model with the adapter by "
        f"at most {difference:.1g}."
    )
    return 0
