"""Options for sampling and for speed."""

from dataclasses import dataclass
from typing import Literal, cast

from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Idle, Rule, refuses
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import Count, CountOrZero, PositiveOrZero, PositiveShare, Share


@dataclass
class SamplingOptions:
    """Recipe keys for sampling; a base of `GRPOExtConfig`.

    Args:
        sampler_check_share (`float`, defaults to 0.125): the share of completions for which
            `generate` records the log-probs of the sampled tokens, for `sampling/logp_difference`
            and the importance ratios. Separate samplers return all of them.
        vllm_importance_sampling_mode (`str`, defaults to `"token_truncate"`): how the log-probs of
            a separate sampler correct the gradient. `"token_truncate"` caps each token's own ratio
            and keeps every token; it ignores the ratios of earlier tokens, which is a small bias.
            TRL's default, `"sequence_mask"`, weights a completion by the product of its tokens'
            ratios, which rounding errors make vanish or explode as completions grow.
        disable_dropout (`bool`, defaults to `True`): whether the model's dropout modules, including
            `lora_dropout`, are switched off; TRL's default is `False`. With dropout, the ratios of
            an unchanged policy, and the KL, are off by a few hundredths.
        eval_temperature (`float`, *optional*): how `evaluate()` samples. 0 decodes greedily, and a
            number above 0 samples at that temperature; both leave the random state unchanged and
            log mean scores under the dataset's name. `None`: TRL's evaluation, which samples as
            training does, draws from training's random state and reports a meaningless loss.
        eval_top_p, eval_top_k, eval_min_p (`float`, `int`, `float`, *optional*): truncation at an
            `eval_temperature` above 0; there is none by default, whatever training uses.
        eval_num_samples (`int`, defaults to 1): completions per held-out prompt. With k above 1,
            which needs an `eval_temperature` above 0, `mean@k`, `pass@k` and `mixed@k` are logged
            in addition to `pass@1`, with standard errors.
        eval_constant (`bool`, defaults to `True`): whether an evaluation also logs the score of the
            best constant answer: up to 8 of the completions are each tried as the answer to up to
            32 prompts, and the best of them is scored as the answer to every prompt. This costs
            about one additional call of the rewards per held-out row. There is no such score with
            environments, tools or a `rollout_func`, nor for reward models, async rewards and
            rewards such as `judge`, which load a model or query a server.
    """

    sampler_check_share: PositiveShare = 0.125
    vllm_importance_sampling_mode: str = "token_truncate"
    disable_dropout: bool = True
    eval_temperature: PositiveOrZero | None = None
    eval_top_p: PositiveShare = 1.0
    eval_top_k: CountOrZero = 0
    eval_min_p: Share | None = None
    eval_num_samples: Count = 1
    eval_constant: bool = True


@dataclass
class SpeedOptions:
    """Recipe keys for speed; for the same completions, the gradient differs only by rounding.

    A base of `GRPOExtConfig`.

    Args:
        fast_generate (`bool`, defaults to `True`): where transformers' `generate` samples, in
            training and evaluation: run each distinct prompt once, and remove finished completions
            from the batch. The distribution is the same, but the random draws differ. `False`: as
            in TRL.
        layout (`str`, defaults to `"auto"`): how completions are arranged for the model in
            training. `"chunks"`: completions of similar length together, each distinct prompt once.
            `"packed"`: one after another in a row without padding; refused if the model would mix
            them. `"padded"`: one rectangle per micro-batch, as in TRL. `"auto"`: chosen by the
            model, its attention, the ranks and the lengths; the first lines of a run report the
            choice. All but `"padded"` also balance the completions of a step over its micro-batches
            and all ranks by tokens.
        max_tokens_per_micro_batch (`int`, *optional*): split micro-batches with more tokens
            (prompts and completions, without padding) into pieces that run forward and backward one
            after another, the same number on all ranks. A single longer completion stays whole.
            `None`: limited only by `per_device_train_batch_size`.
        skip_dead_rows (`bool`, defaults to `True`): skip completions whose advantage is 0 if
            nothing else (KL, entropy bonus, `positive_nll_coef`) can give them a gradient. Metrics
            such as `entropy` are then means over the other completions.
        per_device_eval_batch_size (`int`, *optional*): completions that a process generates or
            scores at once in evaluations. `None`: chosen when the run starts, at least 8 and
            `per_device_train_batch_size`, and up to 64 if evaluation then needs no more memory than
            training, by the estimate in `grpo_ext.recipe.memory`. Greedy completions do not depend
            on it, except for rounding errors; sampled ones are different draws from the same
            distribution. TRL's default is 8.
    """

    fast_generate: bool = True
    layout: Literal["auto", "padded", "chunks", "packed"] = "auto"
    max_tokens_per_micro_batch: Count | None = None
    skip_dead_rows: bool = True
    per_device_eval_batch_size: int = cast(int, None)  # the type is TRL's; see `fields.TYPES`


@refuses(
    "eval_num_samples",
    "`eval_temperature: 0` gives the same completion {eval_num_samples} times. Set "
    "`eval_num_samples: 1`, or raise eval_temperature.",
)
def several_greedy_samples(v: Values) -> bool:
    return v.eval_temperature == 0 and v.eval_num_samples > 1


@refuses(
    "max_tokens_per_micro_batch",
    "top_entropy_quantile below 1 is computed over a whole micro-batch, which "
    "max_tokens_per_micro_batch splits. Remove one of them.",
)
def entropy_quantile_of_a_cut_batch(v: Values) -> object:
    return v.max_tokens_per_micro_batch and v.top_entropy_quantile not in (None, 1.0)


RULES: tuple[Rule, ...] = (
    several_greedy_samples,
    Dependency("layout", ("auto", "padded", "chunks"), STEP_NORMALIZATION),
    Dependency(
        "max_tokens_per_micro_batch",
        (None,),
        STEP_NORMALIZATION | {"layout": ("auto", "chunks", "packed")},
    ),
    entropy_quantile_of_a_cut_batch,
)
NOTES: tuple[Rule, ...] = (
    Idle(("eval_steps",), lambda v: v.eval_strategy != "no", "`eval_strategy: steps`"),
    Idle(
        ("eval_*",),
        lambda v: v.eval_strategy != "no",
        "`eval_strategy: steps` or `epoch`",
        always=("eval_strategy", "eval_dataset_name"),  # `grpo-ext eval` reads the second
    ),
    Idle(
        ("eval_top_*", "eval_min_p"),
        lambda v: v.eval_temperature,
        "eval_temperature above 0",
    ),
)
