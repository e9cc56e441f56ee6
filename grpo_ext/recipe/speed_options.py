"""The options about speed: what is left out of a step because it does not change the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count


@dataclass
class SpeedOptions:
    """Recipe keys about speed; a base of `GRPOExtConfig`. None of them changes the gradient by more than rounding.

    Args:
        fast_generate (`bool`, defaults to `True`): where transformers' `generate` makes the completions, in training and
            evaluation: read each distinct prompt once, and take completions that have ended out of the batch. The distribution
            is the same, the random draws are others. `False`: as TRL does.
        length_batching (`bool`, defaults to `True`): deal the completions of an optimizer step to its micro-batches by tokens,
            over all ranks, cut padding, and run completions of like length together. The gradient is the same.
        max_tokens_per_micro_batch (`int`, *optional*): cut micro-batches of more tokens than this, prompts and completions
            without padding, into several that run forward and backward one after the other; all ranks into equally many. A
            completion that alone is longer stays whole. `None`: `per_device_train_batch_size` alone bounds them.
        skip_dead_rows (`bool`, defaults to `True`): do not run completions whose advantage is 0 where nothing else (KL,
            entropy bonus) can give them a gradient. Metrics such as `entropy` are then means over those that ran.
        shared_prefix (`bool`, defaults to `True`): run the prompt of a group once rather than once a completion, where the
            model keeps keys and values: not with gradient checkpointing, sliding windows or sharded models.
        packing (`str`, defaults to `"none"`): `"packed"` lays prompts and completions one after the other into one sequence
            without padding, each with positions of its own and blind to the others, in place of chunks of like length and
            shared prompts. For FlashAttention on a GPU and for sharded models; refused where a model would mix the sequences.
        compact_head (`bool`, defaults to `True`): on a CPU, compute logits at the completions' positions only, in tiles that
            fit its cache. On a GPU TRL does as well already.
    """

    fast_generate: bool = True
    length_batching: bool = True
    max_tokens_per_micro_batch: Count | None = None
    skip_dead_rows: bool = True
    shared_prefix: bool = True
    packing: Literal["none", "packed"] = "none"
    compact_head: bool = True


def speed_rules(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """What `packing` and `max_tokens_per_micro_batch` need."""
    cut = "max_tokens_per_micro_batch"
    for key, what, asked in (("packing", "packing: packed", v["packing"] == "packed"), (cut, cut, v[cut])):
        for needed, value in (("loss_normalization", "step"), ("length_batching", True)):
            if asked and v[needed] != value:
                yield Problem(f"{what} needs {needed}: {str(value).lower()}.", key)
