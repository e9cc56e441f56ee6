"""The options about sampling: the temperature of training, a separate sampler's correction, and how evaluation decodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_ext.objective.schedule import SCHEDULES

CHOICES: dict[str, tuple[str, ...]] = {"temperature_schedule": SCHEDULES}
RANGES: dict[str, tuple[float, float | None]] = {
    "temperature_end": (1e-6, None),
    "sampler_check_share": (1e-3, 1),
    "eval_temperature": (0, None),
    "eval_top_p": (1e-9, 1),
    "eval_top_k": (0, None),
    "eval_min_p": (0, 1),
    "eval_num_samples": (1, None),
}


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

    temperature_schedule: str = field(
        default="constant",
        metadata={"help": "How temperature moves to temperature_end over the run: constant, linear or cosine."},
    )
    temperature_end: float | None = field(default=None, metadata={"help": "Temperature of the last step."})
    sampler_check_share: float = field(
        default=0.125,
        metadata={
            "help": "Share of completions whose log-probs are noted as drawn, to be compared with the trainer's."
        },
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={
            "help": "How a separate sampler's log-probs correct the gradient: token_truncate keeps every token; token_mask, "
            "sequence_truncate, sequence_mask (TRL's)."
        },
    )
    disable_dropout: bool = field(
        default=True,
        metadata={
            "help": "No dropout, so that completions are scored under the policy that sampled. TRL's default: false."
        },
    )
    eval_temperature: float | None = field(
        default=None,
        metadata={"help": "Temperature of evaluation: 0 greedy, None TRL's own evaluation (samples as in training)."},
    )
    eval_top_p: float = field(default=1.0, metadata={"help": "top_p of evaluation at a temperature above 0."})
    eval_top_k: int = field(default=0, metadata={"help": "top_k of evaluation at a temperature above 0; 0 keeps all."})
    eval_min_p: float | None = field(default=None, metadata={"help": "min_p of evaluation at a temperature above 0."})
    eval_num_samples: int = field(
        default=1,
        metadata={"help": "Completions a held-out prompt, for mean@k and pass@k; above 1 needs a temperature."},
    )
    eval_outcome_reward: str | None = field(
        default=None, metadata={"help": "The reward that pass@k is about; None: the task's own, or the first."}
    )
