"""The types of recipe fields, and a check of configs built in Python against these types.

The fields of this package have exact types. TRL types many of its fields as plain `str` or `float`
and rejects wrong values late or never; `CHOICES`, `NAMES` and `BOUNDS` state which values these
fields accept.
"""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count, Positive, PositiveOrZero, PositiveShare, Share, convert

if TYPE_CHECKING:
    from trl import GRPOConfig

CORRECTIONS = (
    "token_truncate",
    "token_mask",
    "sequence_truncate",
    "sequence_mask",
    "geometric_truncate",
    "geometric_mask",
)
CHOICES: dict[str, tuple[str | bool, ...]] = {
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": CORRECTIONS,
    "vllm_mode": ("colocate", "server"),
    "vllm_model_impl": ("vllm", "transformers"),
}
# Fields typed as an enumeration or `str` that accept only the enumeration's values.
NAMES = ("lr_scheduler_type", "eval_strategy", "logging_strategy", "save_strategy")
TYPES: dict[str, Any] = {
    "num_generations": Annotated[int, Field(ge=2)],  # TRL's type allows null
    "per_device_eval_batch_size": Count | None,  # with null, the trainer chooses
    "generation_kwargs": dict[str, Any] | None,  # TRL's type allows a string
    "gradient_checkpointing": bool | None,  # with null, the trainer chooses
    # the rule `unknown_advantages` checks names; on the command line, true and false are booleans
    "scale_rewards": Literal[True, False] | Annotated[str, Field(min_length=1)],
}
# Bounds of numeric fields, each with the names of the fields that it applies to.
BOUNDS: tuple[tuple[Any, str], ...] = (
    (Annotated[int, Field(ge=1, le=65535)], "vllm_server_port"),
    (Count,
     "num_iterations steps_per_generation generation_batch_size per_device_train_batch_size "
     "gradient_accumulation_steps max_completion_length "
     "num_generations_eval vllm_tensor_parallel_size lora_r lora_alpha "
     "ref_model_sync_steps"),
    (PositiveOrZero,
     "learning_rate top_k beta epsilon epsilon_high delta warmup_steps weight_decay max_grad_norm "
     "entropy_coef "
     "vllm_server_timeout adam_epsilon"),
    (Positive,
     "temperature repetition_penalty num_train_epochs logging_steps eval_steps save_steps "
     "sapo_temperature_pos "
     "sapo_temperature_neg"),
    (Share, "min_p top_entropy_quantile lora_dropout"),
    (Annotated[float, Field(ge=0, lt=1)], "adam_beta1 adam_beta2"),
    (PositiveShare, "top_p vllm_gpu_memory_utilization"),
)  # fmt: skip


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by the field's name.

    The types are narrower than the annotations where possible: `TYPES` replaces some of them, a
    field with choices (see `choices_of`) gets a `Literal` type, and `BOUNDS` limits numbers.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    bounds: dict[str, Any] = {}
    for kind, names in BOUNDS:
        bounds |= dict.fromkeys(names.split(), kind.__metadata__[0])
    narrowed = {}
    for f in dataclasses.fields(cls):
        hint = TYPES.get(f.name, hints[f.name])
        choices = choices_of(f, hint)
        if choices:
            allows_null = type(None) in typing.get_args(hint)
            hint = Literal[choices]
            if allows_null:
                hint = hint | None
        elif f.name in bounds:
            hint = Annotated[hint, bounds[f.name]]
        narrowed[f.name] = hint
    return narrowed


def choices_of(f: dataclasses.Field, hint: Any) -> tuple[str | bool, ...]:
    """Return the allowed values of a field that has a fixed list of them; `()` for other fields.

    Args:
        f: the field of the dataclass.
        hint: its type; for a field in `NAMES`, the values of the enumeration in `hint` are the
            choices.
    """
    stated = f.metadata.get("choices") or CHOICES.get(f.name)
    if stated:
        return tuple(stated)
    if f.name in NAMES:
        for kind in typing.get_args(hint):
            if issubclass(kind, Enum):
                return tuple(choice.value for choice in kind)
    if f.name == "cache_implementation":
        from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

        return tuple(ALL_CACHE_IMPLEMENTATIONS)
    return ()


def default_of(f: dataclasses.Field) -> Any:
    """Return the default value of a field, or `None` if it has no default."""
    if f.default is not dataclasses.MISSING:
        return f.default
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return None


def field_problems(args: GRPOConfig, cls: type) -> list[Problem]:
    """Check a config built in Python against the field types of `cls`, and convert its values.

    A value that fits its type only after conversion, such as the string `"5e-7"` for a number, is
    replaced in `args`. Fields whose type is the same in TRL's `GRPOConfig` are not checked.

    Args:
        args: the config to check; it must have all fields of `cls` and may be changed.
        cls: the dataclass whose field types apply.

    Returns:
        One problem for each value that does not fit its type.
    """
    from trl import GRPOConfig

    trl = typing.get_type_hints(GRPOConfig)
    problems = []
    for name, hint in hints_of(cls).items():
        if hint == trl.get(name):
            continue
        try:
            fitting = convert(name, getattr(args, name), hint)
            if fitting != getattr(args, name):
                setattr(args, name, fitting)
        except ValueError as error:
            problems.append(Problem(str(error), name))
    return problems
