"""Notes about settings of a recipe that are odd, wasteful or without effect.

Notes do not keep a run from starting; settings that are wrong are reported as problems instead.
"""

from collections.abc import Iterator

from grpo_ext.recipe import (
    group_options,
    objective_options,
    overlap_options,
    run_rules,
    step_options,
    vllm_options,
)
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.objective_options import low_cap
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values

# Up to these learning rates, most updates of Adam are less than half the distance between a weight
# and the next number of its dtype. This assumes that an update is about as large as the learning
# rate, and that weights are normally distributed with a standard deviation of 0.02.
LOST_RATES = {"bfloat16": 3e-5, "float16": 3e-6}
# Optimizers that update weights in the weights' own dtype, without a float32 copy of them.
PLAIN_ADAM = ("adamw_torch", "adamw_torch_fused")


def unread_by_supervised(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if `dataset_test_split` is set, which supervised training does not use."""
    if "dataset_test_split" in v:
        yield Problem(
            "dataset_test_split does nothing: supervised training reads only dataset_train_split.",
            "dataset_test_split",
        )


def ignored_buffers(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if `ignore_bias_buffers` is set, which only TRL's own scripts use."""
    if v.ignore_bias_buffers:
        yield Problem(
            "ignore_bias_buffers does nothing in grpo-ext. Remove it.", "ignore_bias_buffers"
        )


def no_learning_rate(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if the learning rate is 0, which leaves all weights unchanged."""
    if v.learning_rate == 0:
        yield Problem("`learning_rate: 0` leaves all weights unchanged.", "learning_rate")


def rounded_steps(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if most updates of weights in half precision would be lost to rounding.

    Only the optimizers in `PLAIN_ADAM` are checked. There is no note for an adapter, because its
    weights are in float32. There is none with DeepSpeed or FSDP either, because these update
    weights in float32.
    """
    dtype = str(v.dtype).removeprefix("torch.")
    if v.use_peft or v.optim not in PLAIN_ADAM:
        return
    if not 0 < v.learning_rate <= LOST_RATES.get(dtype, 0):
        return
    if settings_of(v).get("distributed_type") in ("DEEPSPEED", "FSDP"):
        return
    yield Problem(
        f"`dtype: {dtype}` is too coarse for `learning_rate: {v.learning_rate:g}`: most updates "
        "are smaller than the precision of the weights and are rounded away. Set `dtype: float32` "
        "with `bf16: true`, which needs twice the memory for weights, gradients and optimizer "
        "states, or set `use_peft: true`, which keeps the adapter in float32.",
        "dtype",
    )


def held_back(v: Values, _: int) -> Iterator[Problem]:
    """Yield notes if a large KL coefficient or strong gradient clipping holds the policy back."""
    if v.beta > 1:
        yield Problem(
            f"`beta: {v.beta:g}` keeps the policy close to the reference, because the KL outweighs "
            "the advantages, which are about 1. Usual values are 0 to 0.1.",
            "beta",
        )
    if 0 < v.max_grad_norm < 1e-6:
        yield Problem(
            f"`max_grad_norm: {v.max_grad_norm:g}` clips gradients until most entries are less "
            "than the epsilon of Adam, so the weights hardly change. The default is 1.0.",
            "max_grad_norm",
        )


def only_model(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if checkpoints contain only the model, so that no run can resume from them."""
    if v.save_only_model and v.save_strategy != "no":
        yield Problem(
            "`save_only_model: true` does not save the optimizer's state, so the run cannot be "
            "resumed from its checkpoints.",
            "save_only_model",
        )


SFT_NOTES: tuple[Rule, ...] = (unread_by_supervised, ignored_buffers)
#: Notes that also apply to arguments built in Python, where an option without effect is harmless.
ARGUMENT_NOTES: tuple[Rule, ...] = (low_cap, no_learning_rate, held_back, only_model)
GRPO_NOTES: tuple[Rule, ...] = (
    *run_rules.NOTES,
    *group_options.NOTES,
    *objective_options.NOTES,
    *step_options.NOTES,
    *vllm_options.NOTES,
    *overlap_options.NOTES,
    ignored_buffers,
    rounded_steps,
    *ARGUMENT_NOTES,
)


def notes_of(v: Values, rules: tuple[Rule, ...], num_processes: int) -> list[Problem]:
    """Return the notes that `rules` yield, in their order, but only the first for each key."""
    notes: dict[str | None, Problem] = {}
    for rule in rules:
        for note in rule(v, num_processes):
            notes.setdefault(note.key, note)
    return list(notes.values())
