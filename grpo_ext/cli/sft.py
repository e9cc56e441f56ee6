"""`grpo-ext sft`: run supervised fine-tuning from a recipe.

examples:
  grpo-ext sft --config recipes/countdown/tiny-sft.yaml
  grpo-ext sft --config countdown/tiny-sft --dataset_name mine.jsonl --learning_rate 1e-3

It runs `accelerate launch`. Any key of a recipe can be set on the command line as --key value. Keys
are the fields of TRL's SFTConfig, ModelConfig and ScriptArguments, plus muon and accelerate_config.
The dataset has conversational `prompt` and `completion` columns, or any other format that TRL's
SFTTrainer accepts.
"""

import argparse

from grpo_ext.cli.train import add_training_parser


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add_training_parser(subparsers, __doc__, "grpo_ext.sft")
