"""Rules of the loss and of scoring that need more than a comparison of two options."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from grpo_ext.common.modules import load_file
from grpo_ext.objective.advantage import advantage_names, joint_advantage_names
from grpo_ext.objective.kl import REFUSED
from grpo_ext.objective.policy import get_loss, loss_names, ratios_move
from grpo_ext.objective.sampling import (
    FIELD_DEFAULTS,
    UNTOLD_KEPT_SETS,
    SamplingError,
    resolve_sampling,
)
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.contradictions import corrected
from grpo_ext.recipe.needs import LOSSES, Values, compares_groups
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import convert


def plugins(v: Values, _: int) -> Iterator[Problem]:
    """Load the plugin files, which may register what the next rules look up."""
    for path in v["reward_plugins"] or ():
        with suppress(Exception):  # reported where the rewards are built
            load_file(path)
    yield from ()


def loss_type(v: Values, _: int) -> Iterator[Problem]:
    """The loss is one of TRL's or a registered one."""
    try:
        convert("loss_type", v["loss_type"], Literal[(*LOSSES, *loss_names())])
    except ValueError as error:
        yield Problem(str(error), "loss_type")


def advantages(v: Values, _: int) -> Iterator[Problem]:
    """The estimators of advantages are registered, and decide ties only within a group."""
    registered = {
        "scale_rewards": (*advantage_names(), True, False),
        "multi_objective_aggregation": joint_advantage_names(),
    }
    for key, names in registered.items():
        try:
            convert(key, v[key], Literal[names])
        except ValueError as error:
            yield Problem(str(error), key)
    if v["tie_break_reward"] is not None and compares_groups(v):
        yield Problem(
            f"tie_break_reward: {v['tie_break_reward']} needs scale_rewards: group.",
            "tie_break_reward",
        )


def constant_divisor(v: Values, _: int) -> Iterator[Problem]:
    """A loss that divides by `max_completion_length` has one."""
    name = v["loss_type"]
    if name not in loss_names() or get_loss(name).aggregation != "constant":
        return
    if v["max_completion_length"] is None:
        words = (
            f"loss_type {name} divides the loss by max_completion_length, which is null: "
            "write a number."
        )
        yield Problem(words, "max_completion_length")


def reference(v: Values, _: int) -> Iterator[Problem]:
    """The estimator of the KL has the gradient of a KL."""
    reason = REFUSED.get((v["kl_estimator"], v["use_bias_correction_kl"]))
    if v["beta"] and reason:
        yield Problem(f"kl_estimator: {reason}.", "kl_estimator")


def scorable(v: Values, num_processes: int) -> Iterator[Problem]:
    """Completions can be scored exactly under the sampling settings, which do not contradict each
    other.
    """
    given = v["generation_kwargs"]
    if v["logprob_policy"] != "sampling" or isinstance(given, str):
        return
    fields = {key: v[key] for key in FIELD_DEFAULTS}
    watched = not (v["use_vllm"] or v["use_transformers_continuous_batching"])
    try:
        params = resolve_sampling(
            fields, given, sampler="vllm" if v["use_vllm"] else "hf", watched=watched
        )
    except SamplingError as error:
        in_kwargs = error.option in (given or {})
        yield Problem(str(error), "generation_kwargs" if in_kwargs else error.option)
        return
    batch = batch_of(v, num_processes)
    # and that pass notes the kept tokens
    with_old_pass = ratios_move(batch.gradient_accumulation_steps, batch.passes)
    if params.truncated and not watched and v["beta"] and not (corrected(v) or with_old_pass):
        yield Problem(UNTOLD_KEPT_SETS, "beta")
