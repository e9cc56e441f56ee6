"""Options of a recipe that contradict each other."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.needs import CLIPPED_LOSSES, Values
from grpo_ext.recipe.overlap_options import SHARDED, separate


class Contradiction(NamedTuple):
    """Settings that cannot be together."""

    key: str  #: the key at fault
    holds: Callable[[Values], object]  #: whether a recipe's values have it, as a truth value
    message: str  #: values of the recipe stand in braces


ALWAYS: tuple[Contradiction, ...] = (
    Contradiction(
        "model_name_or_path",
        lambda v: not v["model_name_or_path"],
        "model_name_or_path is missing: name a model folder or a hub id.",
    ),
)

SUPERVISED: tuple[Contradiction, ...] = (
    Contradiction(
        "dataset_name",
        lambda v: not v["dataset_name"],
        "dataset_name is missing: name a jsonl, json, csv or parquet file, or a hub id.",
    ),
    Contradiction(
        "eval_strategy",
        lambda v: v["eval_strategy"] != "no",
        "eval_strategy: supervised training has no held-out rows here. Take it out; `grpo-ext "
        "eval` compares models.",
    ),
)

GRPO: tuple[Contradiction, ...] = (
    # the model
    Contradiction(
        "lora_target_modules",
        lambda v: v["use_peft"] and is_one_plain_name(v["lora_target_modules"]),
        "lora_target_modules: a single entry must match whole names of layers: write "
        "'.*{lora_target_modules[0]}' or all-linear.",
    ),
    Contradiction(
        "fp16",
        lambda v: v["fp16"] and v["bf16"],
        "fp16 and bf16 are both true: keep one, or write `bf16: false`.",
    ),
    Contradiction(
        "load_in_8bit",
        lambda v: v["load_in_4bit"] and v["load_in_8bit"],
        "load_in_4bit and load_in_8bit are both true: keep one.",
    ),
    # the batch, and how long the run is
    Contradiction(
        "auto_find_batch_size",
        lambda v: v["auto_find_batch_size"],
        "auto_find_batch_size would break groups when it halves the batch: take it out and lower "
        "per_device_train_batch_size.",
    ),
    Contradiction(
        "max_tokens_per_micro_batch",
        lambda v: v["max_tokens_per_micro_batch"] and v["top_entropy_quantile"] not in (None, 1.0),
        "top_entropy_quantile below 1 is taken over a micro-batch, which "
        "max_tokens_per_micro_batch would cut: take one out.",
    ),
    Contradiction(
        "max_steps",
        lambda v: v["max_steps"] == 0,
        "max_steps: 0 trains nothing: write a number above 0, or -1 for num_train_epochs.",
    ),
    Contradiction(
        "dataset_streaming",
        lambda v: v["dataset_streaming"] and v["max_steps"] < 0,
        "a streamed data set has no length: set max_steps.",
    ),
    Contradiction(
        "curriculum",
        lambda v: v["curriculum"] != "none" and v["dataset_streaming"],
        "curriculum: {curriculum} chooses among all rows: take dataset_streaming out.",
    ),
    Contradiction(
        "curriculum",
        lambda v: v["curriculum"] == "easy_to_hard" and not v["difficulty_column"],
        "curriculum: easy_to_hard needs difficulty_column: name the column of numbers that says "
        "how hard a row is.",
    ),
    Contradiction(
        "resume",
        lambda v: v["resume_from_checkpoint"] and v["resume"] != "auto",
        "resume: {resume} and resume_from_checkpoint: {resume_from_checkpoint} both say where to "
        "begin: take the second out.",
    ),
    Contradiction(
        "resume",
        lambda v: (
            not (
                v["resume_from_checkpoint"]
                or v["resume"] in ("auto", "never")
                or Path(v["resume"]).expanduser().is_dir()
            )
        ),
        "resume is auto, never, or the folder of a checkpoint; there is no folder {resume!r}.",
    ),
    # the sampler
    Contradiction(
        "use_transformers_continuous_batching",
        lambda v: v["use_transformers_continuous_batching"] and v["use_vllm"],
        "use_vllm and use_transformers_continuous_batching are both true, and only one can "
        "sample: keep use_vllm.",
    ),
    Contradiction(
        "use_transformers_continuous_batching",
        lambda v: (
            v["use_transformers_continuous_batching"]
            and not (v["use_vllm"] or v["bf16"] is False or v["fp16"])
        ),
        "use_transformers_continuous_batching with bf16 rounds the trained weights to bfloat16 "
        "for good: write `bf16: false`.",
    ),
    Contradiction(
        "sampler",
        lambda v: v["sampler"] and (v["use_vllm"] or v["use_transformers_continuous_batching"]),
        "sampler: process samples itself: take use_vllm and use_transformers_continuous_batching "
        "out.",
    ),
    Contradiction(
        "sampler",
        lambda v: v["sampler"] and sharding(v) >= 3,
        SHARDED,
    ),
    # of several log-probs the first is the likeliest token's, not the drawn one's
    Contradiction(
        "generation_kwargs",
        lambda v: v["use_vllm"] and {"n", "logprobs"} & set(v["generation_kwargs"] or ()),
        "generation_kwargs: the trainer says how many completions and log-probs vLLM returns: "
        "take n and logprobs out.",
    ),
    Contradiction(
        "overlap",
        lambda v: v["overlap"] != "off" and v["use_vllm"] and v["vllm_mode"] == "colocate",
        "overlap: one_step needs a device for each side, and vllm_mode: colocate shares one: "
        "write server.",
    ),
    Contradiction(
        "overlap",
        lambda v: (
            v["overlap"] != "off"
            and v["behaviour_policy"] == "decoupled"
            and not v["vllm_importance_sampling_correction"]
        ),
        "overlap: one_step trains on completions of older weights: write "
        "vllm_importance_sampling_correction: true, or "
        "behaviour_policy: sampler.",
    ),
    Contradiction(
        "max_completion_length",
        lambda v: (
            v["max_completion_length"] is None
            and (
                not v["use_vllm"]
                or (v["eval_temperature"] is not None and str(v["eval_strategy"]) != "no")
            )
        ),
        "max_completion_length: null ends completions after 20 tokens if transformers decodes: "
        "write a number.",
    ),
    Contradiction(
        "vllm_max_model_length",
        lambda v: (
            v["use_vllm"]
            and v["vllm_max_model_length"]
            and (v["max_completion_length"] or 0) >= v["vllm_max_model_length"]
        ),
        "vllm_max_model_length leaves no prompt beside max_completion_length "
        "{max_completion_length}: raise it.",
    ),
    # the loss
    Contradiction(
        "delta",
        lambda v: (
            v["loss_type"] in CLIPPED_LOSSES
            and v["delta"] is not None
            and v["delta"] <= 1 + upper_clip(v)
        ),
        "delta must be above 1 + epsilon_high; {delta:g} would clip positive advantages before "
        "epsilon_high does, and below 1 "
        "stop their gradient. INTELLECT-2 (arXiv 2505.07291) uses delta: 4 with epsilon: 0.2.",
    ),
    Contradiction(
        "vllm_importance_sampling_mode",
        lambda v: (
            v["loss_type"] == "vespo"
            and corrected(v)
            and not v["vllm_importance_sampling_mode"].startswith("token")
        ),
        "loss_type: vespo multiplies the ratios of a sequence itself, so it needs those of its "
        "tokens. "
        "Write vllm_importance_sampling_mode: token_truncate or token_mask.",
    ),
    Contradiction(
        "neftune_noise_alpha",
        lambda v: v["neftune_noise_alpha"] and v["loss_normalization"] == "step",
        "neftune_noise_alpha adds noise to the embeddings of each pass, so completions are scored "
        "under another policy than the "
        "one that sampled them. Remove neftune_noise_alpha.",
    ),
    Contradiction(
        "loss_normalization",
        lambda v: (
            v["loss_normalization"] != "step"
            and v["logprob_policy"] != "trl"
            and (v["top_k"] or v["top_p"] < 1 or v["min_p"])
        ),
        "loss_normalization: micro_batch ignores top_k, top_p and min_p in scores: unset them, or "
        "write logprob_policy: trl.",
    ),
    Contradiction(
        "sync_ref_model",
        lambda v: v["sync_ref_model"] and not v["beta"],
        "sync_ref_model has no reference to sync: set beta above 0.",
    ),
    Contradiction(
        "sync_ref_model",
        lambda v: v["sync_ref_model"] and v["use_peft"],
        "sync_ref_model needs a reference model, and with use_peft that is the model without its "
        "adapter: take one out.",
    ),
    Contradiction(
        "entropy_coef_min",
        lambda v: v["use_adaptive_entropy"] and v["entropy_coef_min"] > v["entropy_coef_max"],
        "entropy_coef_min {entropy_coef_min:g} is above entropy_coef_max {entropy_coef_max:g}: "
        "swap them.",
    ),
    # groups, rewards and prompts
    Contradiction(
        "reward_weights",
        lambda v: v["reward_weights"] is not None and v["reward_funcs"] is None,
        "reward_weights needs reward_funcs: say which reward each weight is for.",
    ),
    Contradiction(
        "pass_rates_file",
        lambda v: v["pass_rates_file"] and not Path(v["pass_rates_file"]).expanduser().is_file(),
        "pass_rates_file: no file at {pass_rates_file}.",
    ),
    # evaluation
    Contradiction(
        "eval_num_samples",
        lambda v: v["eval_temperature"] == 0 and v["eval_num_samples"] > 1,
        "eval_temperature 0 gives the same completion {eval_num_samples} times: write "
        "eval_num_samples: 1, or raise it.",
    ),
)


def is_one_plain_name(target_modules: list[str] | None) -> bool:
    """Whether the only target module is a name, which peft takes for a pattern of whole names."""
    return (
        target_modules is not None and len(target_modules) == 1 and target_modules[0].isidentifier()
    )


def upper_clip(v: Values) -> float:
    """The upper clip range: `epsilon_high`, or `epsilon` where it is not set."""
    return v["epsilon"] if v["epsilon_high"] is None else v["epsilon_high"]


def corrected(v: Values) -> bool:
    """Whether the log-probs of a separate sampler correct the gradient."""
    return (
        separate(v)
        and v["vllm_importance_sampling_correction"]
        and v["behaviour_policy"] == "decoupled"
    )
