"""`grpo-ext data`: download the rows of a dataset, to train without a network.

examples:
  grpo-ext data                    list the datasets that the packaged recipes use
  grpo-ext data gsm8k --out data   write data/gsm8k-main-train.jsonl and data/gsm8k-main-test.jsonl
  grpo-ext data HuggingFaceH4/MATH-500 --split test

It writes the train split of a hub dataset to a jsonl file and, if there is one, the test split to
another; --split selects other splits. It prints the number of rows in each file, the license that
the dataset card states, and the recipe keys to set. An existing file is never replaced with
different rows.
"""

import argparse
from pathlib import Path

from grpo_ext.cli.command import add_command
from grpo_ext.common.run_time import counted
from grpo_ext.common.yaml_text import yaml_scalar


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_command(subparsers, __doc__, run).add_argument
    add(
        "name",
        metavar="NAME",
        nargs="?",
        help="a listed dataset, such as gsm8k, or OWNER/NAME on the hub (default: print the list)",
    )
    add(
        "--split",
        action="append",
        metavar="SPLIT",
        help="a split, such as test or train[:1000]; repeatable (default: train, and test if there "
        "is one)",
    )
    add(
        "--dataset_config",
        metavar="CONFIG",
        help="name of the configuration, for a dataset that has several",
    )
    add(
        "--out",
        type=Path,
        default=Path("."),
        metavar="FOLDER",
        help="folder for the files (default: the current one)",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.run.fetch_rows import fetch_rows, find_source, license_of, packaged_sources

    if args.name is None:
        sources = packaged_sources()
        width = max(map(len, sources))
        for name, source in sources.items():
            print(f"{name:{width}}  {source}")
        return 0
    source = find_source(args.name, args.dataset_config)
    files = fetch_rows(source, args.out, args.split)
    print(f"{source}: license {license_of(source)}")
    for file in files:
        print(f"  {counted(file.count, 'row')} of the split {file.split} in {file.path}")
    print("To train on these files without a network, set these keys in a recipe:")
    for file in files:
        # only splits such as `train` or `train_sft` are meant for training
        key = "dataset_name" if "train" in file.split else "eval_dataset_name"
        print(f"  {key}: {yaml_scalar(str(file.path))}")
    return 0
