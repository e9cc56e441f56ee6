"""The dataclasses whose fields are recipe keys.

A key keeps TRL's name and meaning wherever TRL has one. `GRPOExtConfig` holds the trainer's arguments and is TRL's
`GRPOConfig` with more fields (`preset: trl` switches them off); `RunConfig` holds what the command needs
beside them. The fields of the named task (see `grpo_ext.tasks`) and of TRL's `ModelConfig` are recipe keys, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from trl import GRPOConfig, ScriptArguments

from grpo_ext.objective.presets import PRESETS
from grpo_ext.recipe import group_options, safety_options, sampling_options, speed_options, vllm_options

# TRL keeps these as plain strings and fails on a misspelt one only after the first generation, or never.
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "scale_rewards": ("group", "batch", "none"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_mode": ("colocate", "server"),
    "vllm_model_impl": ("vllm", "transformers"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "lr_scheduler_type": tuple(choice.value for choice in SchedulerType),
    "eval_strategy": tuple(choice.value for choice in IntervalStrategy),
    "logging_strategy": tuple(choice.value for choice in IntervalStrategy),
    "save_strategy": tuple(choice.value for choice in SaveStrategy),
    "reward_on_error": ("none", "raise"),
    "loss_normalization": ("step", "micro_batch"),
    "logprob_policy": ("sampling", "model", "trl"),
    "std_estimator": ("sample", "population"),
    "advantage_normalizer": ("all", "useful"),
    "kl_estimator": ("k1", "k2", "k3"),
    "preset": tuple(PRESETS),
    **group_options.CHOICES,
    **sampling_options.CHOICES,
    **vllm_options.CHOICES,
    **speed_options.CHOICES,
    **safety_options.CHOICES,
}

# Smallest and largest value, both allowed; `None` is open. Strict bounds are written as the next sensible value.
RANGES: dict[str, tuple[float, float | None]] = {
    "num_generations": (2, None),
    "num_iterations": (1, None),
    "steps_per_generation": (1, None),
    "per_device_train_batch_size": (1, None),
    "gradient_accumulation_steps": (1, None),
    "max_completion_length": (1, None),
    "learning_rate": (0, None),
    "temperature": (1e-6, None),
    "top_p": (1e-9, 1),
    "top_k": (0, None),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, None),
    "beta": (0, None),
    "epsilon": (0, None),
    "epsilon_high": (0, None),
    "delta": (0, None),
    "top_entropy_quantile": (0, 1),
    "lora_dropout": (0, 1),
    "lora_r": (1, None),
    "reward_max_failure_rate": (0, 1),
    "reward_workers": (0, None),
    "reward_timeout": (1e-3, None),
    "log_samples": (0, 1),
    "log_max_mb": (0.001, None),
    "max_train_samples": (1, None),
    "max_eval_samples": (1, None),
    "per_device_eval_batch_size": (1, None),
    "num_generations_eval": (1, None),
    "generation_batch_size": (1, None),
    "num_train_epochs": (1e-9, None),
    "warmup_steps": (0, None),
    "weight_decay": (0, None),
    "max_grad_norm": (0, None),
    "logging_steps": (1e-9, None),
    "eval_steps": (1e-9, None),
    "save_steps": (1e-9, None),
    "entropy_coef": (0, None),
    "lora_alpha": (1, None),
    "vllm_gpu_memory_utilization": (1e-9, 1),
    "vllm_server_port": (1, 65535),
    "vllm_server_timeout": (0, None),
    "vllm_tensor_parallel_size": (1, None),
    **group_options.RANGES,
    **sampling_options.RANGES,
    **vllm_options.RANGES,
    **speed_options.RANGES,
    **safety_options.RANGES,
}


@dataclass
class GRPOExtConfig(
    group_options.GroupOptions,
    sampling_options.SamplingOptions,
    speed_options.SpeedOptions,
    vllm_options.EngineOptions,
    safety_options.SafetyOptions,
    GRPOConfig,
):
    """TRL's `GRPOConfig` with the options of this package.

    Every argument of `GRPOConfig` means what it means there. With `loss_normalization="micro_batch"`, `logprob_policy="trl"`,
    `fast_generate=False`, `disable_dropout=False`, with vLLM `vllm_importance_sampling_mode="sequence_mask"`, and the other
    added options at their defaults, a run of `GRPOExtTrainer` is bit for bit what `GRPOTrainer` would do. The options about
    groups are those of `GroupOptions`, those about sampling of `SamplingOptions`, about speed of `SpeedOptions`, about vLLM of
    `EngineOptions`, about faults and alarms of `SafetyOptions`.

    Args:
        loss_normalization (`str`, defaults to `"step"`): counts that a loss is divided by. `"step"`: of the whole optimizer
            step, over all micro-batches and ranks, so that the gradient does not depend on how the step is cut.
            `"micro_batch"`: as TRL does.
        logprob_policy (`str`, defaults to `"sampling"`): the policy that completions are scored under. `"sampling"`: with the
            temperature, top_k, top_p and min_p that they were sampled with; what cannot be scored so is refused. `"model"`:
            without any, the papers' formula read literally; the run warns once, and logs how far that is from what was
            sampled under `sampling/logp_difference` and `sampling/ratio`. `"trl"`: with the temperature alone.
        std_estimator (`str`, defaults to `"sample"`): standard deviation of rewards. `"sample"` divides by n - 1, as TRL
            does, `"population"` by n, as the GRPO paper does.
        advantage_normalizer (`str`, defaults to `"all"`): completions that the policy term is divided by: `"all"`, or
            `"useful"`, those of groups whose rewards differ.
        kl_estimator (`str`, defaults to `"k3"`): estimator of the KL to the reference: `"k1"`, `"k2"` or `"k3"`.
        reward_on_error (`str`, defaults to `"none"`): what happens where a reward function raises, returns the wrong
            number of values, or a value that is not finite. `"none"`: those rows count as not scored by it, and
            `rewards/NAME/failed` counts them. `"raise"`: the run stops at the first.
        reward_max_failure_rate (`float`, defaults to 0.5): the share of failed rows, over the last batches, above which
            the run stops with the last error all the same.
        reward_workers (`int`, defaults to 0): number of processes for the rewards that need much CPU time (math
            verification). 0 computes them in the training process.
        reward_timeout (`float`, defaults to 5.0): seconds that a reward may spend on one row, a batch that many times as
            long; after them the row counts as not scored. A worker is replaced; in the training process only Python code
            can be interrupted. Raise it for rewards that ask a server.
        log_samples (`float`, defaults to 1.0): share of the groups whose completions are written to `samples.jsonl` in
            `output_dir`; 0 writes none.
        log_max_mb (`float`, defaults to 256.0): size in MiB at which `samples.jsonl` and `metrics.jsonl` go on in a new file.
    """

    loss_normalization: str = field(
        default="step",
        metadata={
            "help": "Counts that a loss is divided by: 'step', of the whole optimizer step; 'micro_batch', TRL's."
        },
    )
    logprob_policy: str = field(
        default="sampling",
        metadata={
            "help": "Policy that completions are scored under: 'sampling', 'model' or 'trl' (temperature alone)."
        },
    )
    std_estimator: str = field(
        default="sample",
        metadata={"help": "Standard deviation of rewards: 'sample' divides by n - 1, 'population' by n."},
    )
    advantage_normalizer: str = field(
        default="all",
        metadata={
            "help": "Completions that the policy term is divided by: 'all', or 'useful', of groups with signal."
        },
    )
    kl_estimator: str = field(default="k3", metadata={"help": "Estimator of the KL to the reference: k1, k2 or k3."})
    reward_on_error: str = field(
        default="none",
        metadata={"help": "Rows that a reward fails on: 'none' leaves them unscored by it, 'raise' stops the run."},
    )
    reward_max_failure_rate: float = field(
        default=0.5, metadata={"help": "Share of failed rows of one reward above which the run stops."}
    )
    reward_workers: int = field(
        default=0, metadata={"help": "Processes for CPU-heavy rewards; 0 computes them in the training process."}
    )
    reward_timeout: float = field(default=5.0, metadata={"help": "Seconds a reward may spend on one row."})
    log_samples: float = field(
        default=1.0, metadata={"help": "Share of the groups whose completions go to samples.jsonl; 0: none."}
    )
    log_max_mb: float = field(default=256.0, metadata={"help": "Size in MiB at which the logs go on in a new file."})


@dataclass
class LaunchConfig(ScriptArguments):
    """What every training command needs beside its trainer's arguments; `dataset_*` are TRL's `ScriptArguments`.

    Args:
        accelerate_config (`str`, *optional*): what to launch with: a file, or the name of one in `recipes/accelerate/`.
            `None`: `cpu` without a GPU, else `single_gpu`.
        save_merged (`bool`, defaults to `False`): at the end of a run with `use_peft`, also save the whole model, with the
            adapter in its weights, to `merged` in `output_dir`, in the type that the recipe's `dtype` loads it in.
    """

    accelerate_config: str | None = field(
        default=None, metadata={"help": "accelerate config: a file, or the name of one in recipes/accelerate/."}
    )
    save_merged: bool = field(
        default=False,
        metadata={"help": "At the end, also save adapter and base as one whole model, in output_dir/merged."},
    )


@dataclass
class SFTRunConfig(LaunchConfig):
    """What `grpo-ext sft` needs beside TRL's `SFTConfig`.

    Args:
        muon (`bool`, defaults to `False`): train hidden weight matrices with Muon and the rest with AdamW, whatever `optim`
            says. Small models made from nothing learn in half the steps.
    """

    muon: bool = field(default=False, metadata={"help": "Muon for hidden matrices, AdamW for the rest."})


@dataclass
class RunConfig(LaunchConfig):
    """What `grpo-ext train` needs beside `GRPOExtConfig`.

    Args:
        task (`str`): the task's name, see `grpo_ext.tasks`.
        preset (`str`, *optional*): a set of values, each with its source, that the recipe's own replace: `grpo_paper`,
            `dr_grpo_paper`, `dapo_paper`, or `trl` for plain TRL bit for bit. See `grpo_ext.objective.presets`.
        reward_funcs (`list`, *optional*): rewards by name, or as `{name: ..., weight: ..., option: ...}`. `None` takes
            the task's own with their weights.
        reward_plugins (`list[str]`, *optional*): Python files that register further rewards.
        eval_dataset_name (`str`, *optional*): held-out rows, as a file or hub id. `None`: `dataset_test_split` of
            `dataset_name`, or the task's own held-out rows.
        max_train_samples, max_eval_samples (`int`, *optional*): use only the first so many rows.
        resume (`str`, defaults to `"auto"`): where the run begins. `"auto"`: at the newest whole checkpoint of `output_dir`, or
            anew where there is none; a run of another recipe there is an error. `"never"`: anew; what is there moves to
            `earlier-1`, `earlier-2`, and so on. Else the folder of a checkpoint, whose recipe may be another.
    """

    task: str = field(default="countdown", metadata={"help": "Name of the task."})
    preset: str | None = field(default=None, metadata={"help": "A paper's values, which the recipe's own replace."})
    reward_funcs: list[str | dict[str, Any]] | None = field(
        default=None, metadata={"help": "Rewards, by name or as {name, weight, option: value}."}
    )
    reward_plugins: list[str] | None = field(
        default=None, metadata={"help": "Python files that register further rewards."}
    )
    eval_dataset_name: str | None = field(default=None, metadata={"help": "Held-out rows: a file or a hub id."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only so many training rows."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only so many held-out rows."})
    resume: str = field(
        default="auto", metadata={"help": "Where to begin: 'auto', 'never', or the folder of a checkpoint."}
    )
