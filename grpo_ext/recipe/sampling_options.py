"""The options about sampling: the temperature of training, a separate sampler's correction, and how evaluation decodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from grpo_ext.common.modules import load_file
from grpo_ext.environments.rules import episode_rules
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count, CountOrZero, Positive, PositiveOrZero, PositiveShare, Share

if TYPE_CHECKING:
    from grpo_ext.recipe.rules import Values


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
        environment (`str` or `dict`, *optional*): what answers the model's turns, by name or with options, as in
            `{name: guess, high: 31, turns: 5}`. Of every environment: `turns` (8) of an episode, `turn_tokens` of a turn,
            `step_timeout` (10 seconds) of an answer, all at most. `max_completion_length` is of the whole episode, answers
            included. `None`: a completion is one turn.
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
    environment: dict | str | None = None


def environment_rules(v: Values, _: int) -> Iterator[Problem]:
    """The environment is known and takes its options, and everything beside it knows of turns."""
    if v["environment"] is None:
        return
    for path in () if "reward_plugins" in v.unsound else v["reward_plugins"] or ():
        with suppress(Exception):  # told where the rewards are built
            load_file(path)
    try:
        episode_rules(v["environment"])
    except ValueError as error:
        yield Problem(str(error), "environment")
    beside = {"use_transformers_continuous_batching": True, "loss_normalization": "micro_batch"}
    for key, value in beside.items():
        if v[key] == value:
            yield Problem(f"environment does not go with {key}: {value}: take one of the two out.", key)
    if {"stop_strings", "max_new_tokens"} & {*(v["generation_kwargs"] or {})}:
        words = (
            "environment: a turn ends with an end token or at turn_tokens: take stop_strings and max_new_tokens out."
        )
        yield Problem(words, "generation_kwargs")
