"""`grpo-ext merge`: an adapter and its base as one whole model.

examples:
  grpo-ext merge --model runs/poem-qwen2.5-7b-lora                            writes runs/poem-qwen2.5-7b-lora/merged
  grpo-ext merge --model runs/poem-qwen2.5-7b-lora/checkpoint-300 --out models/poem
  grpo-ext merge --model runs/poem-qwen2.5-7b-lora --dtype float32

transformers, vLLM and others load the result like any model. It is read again before it is kept, and its log-probs are compared
with those of base and adapter. A recipe's `save_merged: true` does the same at the end of training.
"""

import argparse
from pathlib import Path

from grpo_ext.cli.command import add_command


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_command(subparsers, __doc__, run).add_argument
    add("--model", required=True, type=Path, metavar="FOLDER", help="the adapter's: an output_dir, or a checkpoint")
    add("--out", type=Path, metavar="FOLDER", help="the new folder (default: merged in that of the adapter)")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    words = "of the weights (default auto: that of the base's files; half types round what was learnt)"
    add("--dtype", choices=dtypes, default="auto", help=words)
    add("--trust_remote_code", action="store_true", help="run code that comes with the base model")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.run.merge_adapter import MERGED, merge_adapter

    out = args.out or args.model / MERGED
    difference = merge_adapter(args.model, out, args.dtype, trust_remote_code=args.trust_remote_code)
    print(f"Merged into {out}: its log-probs differ from those of base and adapter by at most {difference:.1g}.")
    return 0
