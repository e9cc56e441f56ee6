"""Import the modules that runs need, before `execute` forks a process for each run."""

# ruff: noqa: F401
import gc

from trl import GRPOTrainer, SFTTrainer

import grpo_ext.demo.demos
import grpo_ext.reproduce.runs
import grpo_ext.sft
import grpo_ext.train
import grpo_ext.trainer
from grpo_ext.preflight import loaded_recipe

gc.freeze()
