"""The options about sampling, and those about speed: what is left out of a step because it does not change the gradient."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count, CountOrZero, Positive, PositiveOrZero, PositiveShare, Share


@dataclass
class SamplingOptions:
    """Recipe keys about sampling; a base of `GRPOExtConfig`.

    Args:
        temperature_schedule (`str`, defaults to `"constant"`): how `temperature` moves to `temperature_end` over the run's
            steps: `"constant"`, `"linear"` or `"cosine"`. Completions are scored at the temperature that they were sampled
            with, also where they are trained on later.
        temperature_end (`float`, *optional*): the temperature of the last step; a schedule other than `"constant"` needs it.
        sampler_check_share (`float`, defaults to 0.125): share of the completions whose log-probs are noted as they are
            drawn by `generate`, to log `sampling/logp_difference` and the importance ratios. vLLM gives them of all.
        vllm_importance_sampling_mode (`str`, defaults to `"token_truncate"`): how a separate sampler's log-probs correct the
            gradient; TRL's field with another default. TRL's own, `"sequence_mask"`, weights a completion by the product of its
            tokens' ratios and drops it above `vllm_importance_sampling_clip_max`: rounding noise of two engines makes that
            product vanish or explode with the length, so that little is learnt from long completions. A token's own ratio stays
            near 1 whatever the length, and cutting it off keeps every token. What that leaves out is how likely the tokens
            before it were in either engine: a small bias, in place of a signal that fades.
        disable_dropout (`bool`, defaults to `True`): whether the model's dropout modules are off; TRL's field with another
            default. With dropout each pass drops other numbers, the one that samples, too (vLLM drops none), so that ratios of
            an unchanged policy are off by some hundredths, and so is the KL. `lora_dropout`, 0.05 by TRL's default, is of it.
        eval_temperature (`float`, *optional*): how `evaluate()` samples. `None` keeps TRL's evaluation, which samples as
            training does, draws from training's random state and always reports a loss of 0. A number switches to ours:
            0 decodes greedily, above 0 samples at that temperature; the random state is left as it was found, and scores
            are averaged over completions, under the name of their data set.
        eval_top_p, eval_top_k, eval_min_p (`float`, `int`, `float`, *optional*): truncation at an `eval_temperature` above 0;
            by default there is none, whatever training does.
        eval_num_samples (`int`, defaults to 1): completions a held-out prompt. With k above 1 `mean@k` and `pass@k` are
            logged beside `pass@1`, each with its standard error; needs an `eval_temperature` above 0.
        eval_outcome_reward (`str`, *optional*): the reward that pass@k is about; a completion passes with a score of 1 or
            more. `None`: the task's own, from Python the first reward.
    """

    temperature_schedule: Literal["constant", "linear", "cosine"] = "constant"
    temperature_end: Positive | None = None
    sampler_check_share: PositiveShare = 0.125
    vllm_importance_sampling_mode: str = "token_truncate"
    disable_dropout: bool = True
    eval_temperature: PositiveOrZero | None = None
    eval_top_p: PositiveShare = 1.0
    eval_top_k: CountOrZero = 0
    eval_min_p: Share | None = None
    eval_num_samples: Count = 1
    eval_outcome_reward: str | None = None


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
