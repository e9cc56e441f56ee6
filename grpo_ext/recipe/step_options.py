"""The options about sampling, and those about speed."""

from dataclasses import dataclass
from typing import Literal

from grpo_ext.recipe.values import Count, CountOrZero, PositiveOrZero, PositiveShare, Share


@dataclass
class SamplingOptions:
    """Recipe keys about sampling; a base of `GRPOExtConfig`.

    Args:
        sampler_check_share (`float`, defaults to 0.125): share of the completions for which
            `generate` records the log-probs of its draws, for `sampling/logp_difference` and the
            importance ratios. Separate samplers return all.
        vllm_importance_sampling_mode (`str`, defaults to `"token_truncate"`): how the log-probs of
            a separate sampler correct the gradient. `"token_truncate"` limits each token's own
            ratio and keeps every token; it ignores the ratios of earlier tokens, which is a small
            bias. TRL's default, `"sequence_mask"`, weights a completion by the product of its
            tokens' ratios, which rounding noise makes vanish or explode with the length.
        disable_dropout (`bool`, defaults to `True`): whether the model's dropout modules are off;
            TRL's default is `False`. With dropout, ratios of an unchanged policy, and the KL, are
            wrong by some hundredths. `lora_dropout` is also off.
        eval_temperature (`float`, *optional*): how `evaluate()` samples. 0 decodes greedily, a
            number above 0 samples at that temperature; both keep the random state and log mean
            scores under the data set's name. `None`: TRL's evaluation, which samples as training
            does, draws from training's random state and reports a loss without meaning.
        eval_top_p, eval_top_k, eval_min_p (`float`, `int`, `float`, *optional*): truncation at an
            `eval_temperature` above 0; by default there is none, whatever training uses.
        eval_num_samples (`int`, defaults to 1): completions of each held-out prompt. With k above
            1, which needs an `eval_temperature` above 0, `mean@k`, `pass@k` and `mixed@k` are
            logged beside `pass@1`, with standard errors.
        eval_constant (`bool`, defaults to `True`): whether an evaluation also logs what the best
            constant answer earns: the completion, of a few of its own, that scores best when it is
            given to every prompt. It costs about one more call of the rewards for each held-out
            row. Environments, reward models, async rewards and `judge` are left out.
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
    """Recipe keys about speed; they change the gradient by rounding at most.

    A base of `GRPOExtConfig`.

    Args:
        fast_generate (`bool`, defaults to `True`): where transformers' `generate` samples, in
            training and evaluation: run each distinct prompt once, and take completions that have
            ended out of the batch. The distribution is the same, with different random draws.
            `False`: as TRL does.
        layout (`str`, defaults to `"auto"`): how completions run through the model in training.
            `"chunks"`: those of similar length together, each distinct prompt once. `"packed"`: one
            after another in a row without padding; refused where a model would mix them.
            `"padded"`: one rectangle per micro-batch, as TRL. `"auto"` chooses by the model, its
            attention, the ranks and the lengths, and the first lines of a run say what. All but
            `"padded"` also distribute the completions of a step to its micro-batches by tokens,
            over all ranks.
        max_tokens_per_micro_batch (`int`, *optional*): cut micro-batches with more tokens (prompts
            and completions, without padding) into pieces that run forward and backward one after
            another, equally many on all ranks. A single longer completion stays whole. `None`: only
            `per_device_train_batch_size` bounds them.
        skip_dead_rows (`bool`, defaults to `True`): do not run completions whose advantage is 0
            where nothing else (KL, entropy bonus, `positive_nll_coef`) can give them a gradient.
            Metrics such as `entropy` are then means over the others.
    """

    fast_generate: bool = True
    layout: Literal["auto", "padded", "chunks", "packed"] = "auto"
    max_tokens_per_micro_batch: Count | None = None
    skip_dead_rows: bool = True
