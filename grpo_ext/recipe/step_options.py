"""Options for sampling, evaluation and speed, and their rules."""

from dataclasses import dataclass
from typing import Literal, cast

from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Idle, Rule, refuses
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import Count, CountOrZero, PositiveOrZero, PositiveShare, Share


@dataclass
class SamplingOptions:
    """Recipe keys for sampling in training and evaluation; a base of `GRPOExtConfig`.

    Args:
        sampler_check_share (`float`, defaults to 0.125): the share of completions for which
            `generate` records the log-probs of the sampled tokens, from which the metrics
            `sampling/logp_difference` and `sampling/ratio` are computed. Separate samplers return
            the log-probs of all completions.
        vllm_importance_sampling_mode (`str`, defaults to `"token_truncate"`): how the log-probs of
            a separate sampler correct the gradient. `"token_truncate"` weights each token by its
            own ratio, up to a cap, and keeps every token; ignoring the ratios of earlier tokens
            causes a small bias. TRL's default, `"sequence_mask"`, weights a completion by the
            product of its tokens' ratios, which vanishes or explodes in long completions because of
            rounding errors.
        disable_dropout (`bool`, defaults to `True`): whether the model's dropout modules, including
            `lora_dropout`, are switched off; TRL's default is `False`. With dropout, the ratios of
            an unchanged policy, and the KL, are off by a few hundredths.
        eval_temperature (`float`, *optional*): the temperature at which `evaluate()` samples; 0
            means greedy decoding. Such evaluations leave the RNG state of training unchanged and
            log mean scores under the dataset's name. If `None`, TRL evaluates: it samples as in
            training, changes the RNG state and reports a meaningless loss.
        eval_top_p, eval_top_k, eval_min_p (`float`, `int`, `float`, *optional*): top-p, top-k and
            min-p in evaluations with an `eval_temperature` above 0. By default, evaluations use
            none of them, even if training does.
        eval_num_samples (`int`, defaults to 1): the number of completions per held-out prompt. The
            number is ignored if `eval_temperature` is `None`. A number k above 1 is an error at
            temperature 0; at higher temperatures, `mean@k`, `pass@k` and `mixed@k` are logged in
            addition to `pass@1`, with standard errors.
        eval_constant (`bool`, defaults to `True`): whether an evaluation also logs the score of the
            best constant answer, which is one completion used for every prompt. To find it, up to 8
            of the completions are each tried as the answer to up to 32 prompts, and the best of
            them is scored as the answer to every prompt. This costs about one additional call of
            the rewards per held-out row. There is no such score with environments, tools or a
            `rollout_func`, or for rewards that are async, load a model or query a server, such as
            reward models and `judge`.
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
    """Recipe keys for speed; a base of `GRPOExtConfig`.

    For the same completions, these keys change the gradient only by rounding errors.

    Args:
        fast_generate (`bool`, defaults to `True`): whether `generate` of transformers runs each
            distinct prompt only once and removes finished completions from the batch, both in
            training and in evaluations. Completions then have the same distribution, but the random
            draws differ. `False` generates as TRL does.
        layout (`str`, defaults to `"auto"`): how completions are arranged for the model in
            training. `"chunks"`: completions of similar length are batched together, and each
            distinct prompt is run once. `"packed"`: completions follow each other in one row
            without padding; the run fails if the model would mix them. `"padded"`: each
            micro-batch is padded to one rectangle, as in TRL. `"auto"`: the choice depends on the
            model, its attention, the number of ranks and the lengths; the first lines of a run
            report it. All values except `"padded"` also balance the tokens of a step over its
            micro-batches and all ranks, unless the loss depends on which completions share a
            micro-batch (`top_entropy_quantile` below 1, or the MoE load-balancing loss), the
            model's positions count padding, or prompts have images.
        max_tokens_per_micro_batch (`int`, *optional*): the maximum number of tokens (prompts and
            completions, without padding) in a forward and backward pass. Larger micro-batches are
            split into pieces that run one after another, the same number on all ranks; a single
            completion is never split. If `None`, only `per_device_train_batch_size` is a limit. A
            limit is an error with DeepSpeed, and wherever `layout` does not balance tokens.
        skip_dead_rows (`bool`, defaults to `True`): whether to skip completions whose advantage is
            0 if nothing else (KL, entropy bonus, `positive_nll_coef`) can give them a gradient.
            Metrics such as `entropy` are then means over the other completions. Nothing is skipped
            where `layout` does not balance tokens, or if `loss_type` is a loss of your own that is
            registered without `needs_advantage`.
        per_device_eval_batch_size (`int`, *optional*): the number of completions that a process
            generates or scores at once in evaluations. If `None`, it is chosen when the run starts:
            at least 8 and at least `per_device_train_batch_size`, and up to 64 if an evaluation
            then needs no more memory than training (estimated by `grpo_ext.recipe.memory`). Greedy
            completions do not depend on it, except for rounding errors. Sampled completions do, but
            their distribution does not. TRL's default is 8.
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
        always=("eval_strategy", "eval_dataset_name"),  # `grpo-ext eval` uses the second
    ),
    Idle(
        ("eval_top_*", "eval_min_p", "eval_num_samples"),
        lambda v: v.eval_temperature,
        "eval_temperature above 0",
    ),
)
