"""What must hold between the options of the loss: its type, what it is divided by, its reference, its entropy bonus."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from grpo_ext.common.modules import load_file
from grpo_ext.objective.kl import REFUSED
from grpo_ext.objective.policy import loss_names, ratios_move
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import convert

Values = Mapping[str, Any]
TRL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")


def loss_type(v: Values, _: int) -> Iterator[Problem]:
    """The loss is one of TRL's or a registered one, by a plugin file if need be, with the options that it needs."""
    if v["loss_type"] not in loss_names() and "reward_plugins" not in getattr(v, "unsound", ()):
        for path in v["reward_plugins"] or ():
            with suppress(Exception):  # told where the rewards are built
                load_file(path)
    own = [name for name in loss_names() if name not in TRL_LOSSES]
    try:
        convert("loss_type", v["loss_type"], Literal[(*TRL_LOSSES, *own)])
    except ValueError as error:
        yield Problem(str(error), "loss_type")


# What TRL's own division, or its sum of several rewards, knows of these options.
PLAIN = {
    "advantage_normalizer": ("all",),
    "kl_estimator": ("k3",),
    "std_estimator": ("sample",),
    "loss_type": TRL_LOSSES,
    "temperature_schedule": ("constant",),
}


def normalization(v: Values, _: int) -> Iterator[Problem]:
    """What does not fit TRL's own division, or its sum of several rewards."""
    several = v["multi_objective_aggregation"] != "sum_then_normalize"
    for key in (key for key, known in PLAIN.items() if v[key] not in known):
        if v["loss_normalization"] != "step" and key != "std_estimator":
            yield Problem(f"{key}: {v[key]} needs loss_normalization: step.", key)
        if several and key in ("advantage_normalizer", "std_estimator"):
            needed = "multi_objective_aggregation: sum_then_normalize, where a completion has one reward."
            yield Problem(f"{key}: {v[key]} needs {needed}", key)


def unclipped(v: Values, num_processes: int) -> Iterator[Problem]:
    """Notes on a clip range that no ratio can leave; a preset's are told under its name."""
    batch, key = batch_of(v, num_processes), "preset" if v["preset"] == "dapo_paper" else "epsilon_high"
    moves = ratios_move(batch.gradient_accumulation_steps, batch.passes)
    if not moves and v["epsilon_high"] is not None and v["loss_type"] != "cispo":
        where = "where each generation is trained on in one optimizer step, whose ratios are 1"
        steps = f"steps_per_generation: {16 * batch.gradient_accumulation_steps} for 16 steps"
        yield Problem(f"epsilon_high clips nothing {where}: write {steps}, as in DAPO (section 4.1).", key)


def reference(v: Values, _: int) -> Iterator[Problem]:
    """The estimator of the KL has the gradient that it should have."""
    if v["beta"] and (why := REFUSED.get((v["kl_estimator"], v["use_bias_correction_kl"]))):
        yield Problem(f"kl_estimator: {why}.", "kl_estimator")
