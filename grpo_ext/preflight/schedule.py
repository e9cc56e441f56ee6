"""The learning rate's schedule, made once before a run: transformers asks it only when the run begins."""

from __future__ import annotations

import json

import torch
from torch.optim import SGD
from transformers import get_scheduler

from grpo_ext.preflight.findings import Findings
from grpo_ext.recipe.rules import Values


def check_schedule(v: Values, findings: Findings) -> None:
    """Whether `lr_scheduler_type` takes `lr_scheduler_kwargs`."""
    given = v["lr_scheduler_kwargs"]
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
        get_scheduler(v["lr_scheduler_type"], SGD([torch.zeros(1)], lr=1.0), 1, 2, scheduler_specific_kwargs=arguments)
    except (ValueError, TypeError) as error:
        words = f"lr_scheduler_kwargs has to be a mapping of what lr_scheduler_type takes ({error})."
        findings.problem(words, "lr_scheduler_kwargs" if given else "lr_scheduler_type")
