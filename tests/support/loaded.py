"""What the processes of `forked.py` have imported before they begin."""

# ruff: noqa: E402, F401
import gc

gc.disable()  # it would go through all that is imported again and again

import pytest
import scipy.io
import scipy.stats
import torch
from trl import GRPOTrainer, SFTTrainer

import grpo_ext.cli.main
import grpo_ext.evaluation.evaluate_recipe
import grpo_ext.observe.report.serve
import grpo_ext.sft
import grpo_ext.train
import grpo_ext.trainer
import tests.support.fixed_completions
from grpo_ext.preflight import loaded_recipe
from grpo_ext.recipe import load

grpo_ext.cli.main.make_parser()  # imports the subcommands
gc.freeze()
gc.enable()
