"""Dependencies between options: `NEEDS` are errors, `IDLE` are notes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.objective.advantage import (
    SUM_THEN_NORMALIZE,
    TRL_ADVANTAGES,
    TRL_JOINT_ADVANTAGES,
    advantage_names,
    get_advantages,
)
from grpo_ext.objective.policy import ratios_move
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.overlap_options import separate
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.typed_values import Values

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # `objective.policy.clipped`
TRL_LOSSES = (*CLIPPED_LOSSES, "cispo", "sapo", "vespo")
LOSSES = (*TRL_LOSSES, "dppo")  # dppo is this package's own
WITHOUT_DELTA = (
    "cispo",
    "sapo",
    "vespo",
    "dppo",
)  # they ignore delta; a registered loss may read it

OUR_DIVISION = {"loss_normalization": ("step",)}
ONE_REWARD = {"multi_objective_aggregation": (SUM_THEN_NORMALIZE,)}
DEALT_ROWS = {**OUR_DIVISION, "layout": ("auto", "chunks", "packed")}


@dataclass(frozen=True)
class Dependency:
    """A rule: an option needs values of other options, unless its own value is in `free`."""

    key: str
    free: tuple[Any, ...]  #: values that need nothing
    #: for each other option, the values that fit; the first one is proposed
    needed: Mapping[str, tuple[Any, ...]]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if v[self.key] in self.free:
            return
        for other, fitting in self.needed.items():
            if v[other] not in fitting:
                proposed = "null" if fitting[0] is None else str(fitting[0]).lower()
                yield Problem(f"{self.key}: {v[self.key]} needs {other}: {proposed}.", self.key)


NEEDS: tuple[Dependency, ...] = (
    Dependency("loss_type", TRL_LOSSES, OUR_DIVISION),
    Dependency("scale_rewards", (*TRL_ADVANTAGES, True, False), OUR_DIVISION),
    Dependency("multi_objective_aggregation", TRL_JOINT_ADVANTAGES, OUR_DIVISION),
    Dependency("kl_estimator", ("k3",), OUR_DIVISION),
    Dependency("std_estimator", ("sample",), ONE_REWARD),
    Dependency("advantage_normalizer", ("all",), OUR_DIVISION | ONE_REWARD),
    Dependency("group_filter", ("off",), OUR_DIVISION | ONE_REWARD),
    Dependency("positive_nll_coef", (0.0,), OUR_DIVISION),
    Dependency("tie_break_reward", (None,), OUR_DIVISION | ONE_REWARD),
    Dependency(
        "max_slots_per_prompt",
        (1,),
        {
            **OUR_DIVISION,
            "curriculum": ("adaptive",),
            "group_filter": ("drop", "off"),
            "tie_break_reward": (None,),
            "partial_rollouts": (0,),
        },
    ),
    Dependency("curriculum", ("none", "adaptive"), {"group_filter": ("drop", "off")}),
    Dependency(
        "environment", (None,), OUR_DIVISION | {"use_transformers_continuous_batching": (False,)}
    ),
    Dependency("sampler", (None,), OUR_DIVISION),
    Dependency("layout", ("auto", "padded", "chunks"), OUR_DIVISION),
    Dependency("overlap", ("off",), OUR_DIVISION | {"logprob_policy": ("sampling",)}),
    Dependency(
        "behaviour_policy", ("decoupled",), OUR_DIVISION | {"logprob_policy": ("sampling",)}
    ),
    Dependency(
        "partial_rollouts", (0,), {"overlap": ("one_step",), "group_filter": ("drop", "off")}
    ),
    Dependency("max_tokens_per_micro_batch", (None,), DEALT_ROWS),
)

# Options that have no effect unless another option enables them: their prefix, when they have an
# effect, and what enables them.
IDLE: tuple[tuple[str | tuple[str, ...], Callable[[Values], Any], str], ...] = (
    ("vllm_importance_sampling_", separate, "use_vllm: true or sampler: process"),
    ("vllm_", lambda v: v.use_vllm or v.sampler, "use_vllm: true"),
    ("sampler_device", lambda v: v.sampler == "process", "sampler: process"),
    ("vllm_server_", lambda v: v.vllm_mode == "server" or v.sampler, "vllm_mode: server"),
    ("lora_", lambda v: v.use_peft, "use_peft: true"),
    ("delta", lambda v: v.loss_type not in WITHOUT_DELTA, "a loss_type that clips ratios"),
    ("sapo_", lambda v: v.loss_type == "sapo", "loss_type: sapo"),
    ("dppo_", lambda v: v.loss_type == "dppo", "loss_type: dppo"),
    ("vespo_", lambda v: v.loss_type == "vespo", "loss_type: vespo"),
    ("ref_model_", lambda v: v.sync_ref_model, "sync_ref_model: true"),
    ("entropy_coef_", lambda v: v.use_adaptive_entropy, "use_adaptive_entropy: true"),
    ("kl_estimator", lambda v: v.beta, "beta above 0"),
    ("eval_", lambda v: v.eval_strategy != "no", "eval_strategy: steps"),
    (
        ("eval_top_", "eval_min_p"),
        lambda v: v.eval_temperature,
        "eval_temperature above 0",
    ),
    (
        ("group_filter_max_rounds", "max_staleness"),
        lambda v: v.group_filter == "refill",
        "group_filter: refill",
    ),
    ("tie_break_coef", lambda v: v.tie_break_reward, "tie_break_reward"),
    (
        "difficulty_column",
        lambda v: v.curriculum == "easy_to_hard",
        "curriculum: easy_to_hard",
    ),
    (
        ("pass_rates_file", "pass_rate_decay"),
        lambda v: v.curriculum == "adaptive",
        "curriculum: adaptive",
    ),
    (
        "pad_to_multiple_of",  # TRL sets "auto" itself
        lambda v: v.pad_to_multiple_of == "auto" or v.loss_normalization != "step",
        "loss_normalization: micro_batch, because padding is cut off",
    ),
    ("save_steps", lambda v: v.save_strategy == "steps", "save_strategy: steps"),
    ("num_train_epochs", lambda v: v.max_steps < 0, "max_steps left out"),
)
# Options that start with such a prefix but always have an effect.
NOT_IDLE = ("eval_strategy", "eval_dataset_name")  # `grpo-ext eval` reads the second


def compares_groups(v: Values) -> bool:
    """Return whether the advantage estimator compares groups, as `scale_rewards: batch` does."""
    return v.scale_rewards in advantage_names() and not get_advantages(v.scale_rewards).within_group


def idle_keys(v: Values, _: int) -> Iterator[Problem]:
    """Note the options in `IDLE` that are set but have no effect."""
    for key in v:
        for beginning, works, remedy in IDLE:
            if key.startswith(beginning) and key not in NOT_IDLE and v[key] and not works(v):
                yield Problem(f"{key} does nothing without {remedy}.", key)
                break


def unclipped(v: Values, num_processes: int) -> Iterator[Problem]:
    """Note a clip range that no ratio can leave.

    With `preset: dapo_paper`, which sets the range, the note is about `preset`.
    """
    batch = batch_of(v, num_processes)
    key = "preset" if v.preset == "dapo_paper" else "epsilon_high"
    moves = (
        ratios_move(batch.gradient_accumulation_steps, batch.passes)
        or v.behaviour_policy == "sampler"
    )
    if not moves and v.epsilon_high is not None and v.loss_type != "cispo":
        where = "where each generation is trained on in one optimizer step, whose ratios are 1"
        steps = f"steps_per_generation: {16 * batch.gradient_accumulation_steps} for 16 steps"
        yield Problem(
            f"epsilon_high clips nothing {where}: write {steps}, as in DAPO (section 4.1).", key
        )
