"""The dataclasses whose fields are recipe keys.

A key keeps TRL's name and meaning wherever TRL has one. `GRPOExtConfig` has the trainer's
arguments: TRL's `GRPOConfig` with additional fields, which `preset: trl` switches off. `RunConfig`
has the other keys of the command. The fields of the task (see `grpo_ext.tasks`) and of TRL's
`ModelConfig` are also recipe keys.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from trl import GRPOConfig, ScriptArguments

from grpo_ext.common.devices import settings_here
from grpo_ext.objective.presets import PRESETS
from grpo_ext.recipe.episode_options import EpisodeOptions
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.group_options import GroupOptions
from grpo_ext.recipe.overlap_options import OverlapOptions
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.row_options import RowOptions
from grpo_ext.recipe.safety_options import SafetyOptions
from grpo_ext.recipe.step_options import SamplingOptions, SpeedOptions
from grpo_ext.recipe.values import CountOrZero, Positive, PositiveOrZero, PositiveShare, Share
from grpo_ext.recipe.vllm_options import EngineOptions


@dataclass
class GRPOExtConfig(
    GroupOptions,
    SamplingOptions,
    OverlapOptions,
    EpisodeOptions,
    SpeedOptions,
    EngineOptions,
    SafetyOptions,
    GRPOConfig,
):
    """TRL's `GRPOConfig` with the options of this package.

    Every argument of `GRPOConfig` has its usual meaning. A run of `GRPOExtTrainer` equals one of
    `GRPOTrainer` bit for bit with `loss_normalization="micro_batch"`, `logprob_policy="trl"`,
    `fast_generate=False`, `disable_dropout=False`, with vLLM also
    `vllm_importance_sampling_mode="sequence_mask"`, and the other added options at their defaults.

    Args:
        loss_normalization (`str`, defaults to `"step"`): the counts that a loss is divided by.
            `"step"`: those of the whole optimizer step, over all micro-batches and ranks; the
            gradient does not depend on how the step is split. `"micro_batch"`: the same counts as
            in TRL.
        logprob_policy (`str`, defaults to `"sampling"`): the policy under which completions are
            scored. `"sampling"`: with the temperature, top_k, top_p and min_p that they were
            sampled with; settings that cannot be scored exactly are refused. `"model"`: without any
            of them, as in the papers' formulas; the run warns once, and logs the difference from
            the sampling policy as `sampling/logp_difference` and `sampling/ratio`. `"trl"`: with
            the temperature only.
        std_estimator (`str`, defaults to `"sample"`): the standard deviation of rewards. `"sample"`
            divides by n - 1, as TRL does; `"population"` divides by n, as the GRPO paper does.
        advantage_normalizer (`str`, defaults to `"all"`): the completions by whose number the
            policy term is divided: `"all"`, or `"useful"`, those in groups whose rewards differ.
        positive_nll_coef (`float`, defaults to 0.0): the weight of a supervised term, the mean
            negative log-likelihood per token of the correct completions of the step (see
            `pass_threshold`), including those in groups where all completions are correct. VAPO
            (arXiv 2504.05118) uses 0.1. The term is scored under `logprob_policy`, without
            importance ratios.
        kl_estimator (`str`, defaults to `"k3"`): the estimator of the KL to the reference: `"k1"`,
            `"k2"` or `"k3"`. With `use_bias_correction_kl`, `"k1"` and `"k3"` train on the exact
            reverse KL, and `"k2"` is refused. Without it, `"k2"` trains on the exact reverse KL,
            `"k3"` on the forward KL, as in the GRPO paper, and `"k1"` is refused.
        dppo_delta (`float`, defaults to 0.15): the change in a token's probability above which
            `loss_type: dppo` masks the token, if the update would change it further.
        reward_max_failure_rate (`float`, defaults to 0.5): stop the run, with the last error, if a
            reward fails on more than this share of the last 256 rows that it did not decline (by
            returning `None`). A reward fails if it raises, or returns the wrong number of values or
            a value that is not finite; those rows are then not scored, and `rewards/NAME/failed`
            counts them. 0: stop at the first failure.
        reward_workers (`int`, defaults to 1): the number of worker processes per rank for rewards
            that need much CPU time; `accuracy` starts them at the first formula. 0: the training
            process computes everything, and nothing limits memory.
        reward_timeout (`float`, defaults to 5.0): the seconds that a reward may spend on one row; a
            batch has this time for each row. A row that takes longer is not scored. In the training
            process only Python code can be interrupted.
        log_samples (`float`, defaults to 1.0): the share of groups whose completions are written to
            `samples.jsonl` in `output_dir`; 0 writes none.
        log_tokens (`bool`, defaults to `False`): whether these lines also contain each token with
            its advantage, its age in steps, and its log-prob if it is known before the step. The
            report shows them. Lines become ten times as long.

    Raises:
        ValueError: if any argument has a wrong type, choice or range; the message names all of
            them.
    """

    loss_normalization: Literal["step", "micro_batch"] = "step"
    logprob_policy: Literal["sampling", "model", "trl"] = "sampling"
    std_estimator: Literal["sample", "population"] = "sample"
    advantage_normalizer: Literal["all", "useful"] = "all"
    positive_nll_coef: PositiveOrZero = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    dppo_delta: PositiveShare = 0.15
    reward_max_failure_rate: Share = 0.5
    reward_workers: CountOrZero = 1
    reward_timeout: Positive = 5.0
    log_samples: Share = 1.0
    log_tokens: bool = False

    def __post_init__(self) -> None:
        if problems := field_problems(self, GRPOExtConfig):
            raise RecipeError(problems)
        for name, value in settings_here(self.use_cpu or None, self.bf16).items():
            setattr(self, name, value)
        super().__post_init__()


@dataclass
class LaunchConfig(ScriptArguments):
    """Keys of every training command, besides the arguments of its trainer and `ModelConfig`.

    `dataset_*` come from TRL's `ScriptArguments`.

    Args:
        accelerate_config (`str`, *optional*): the accelerate config to launch with: a file, or a
            name in `recipes/accelerate/`. `None`: `cpu` without a GPU, else `single_gpu`.
        muon (`bool`, defaults to `False`): train hidden weight matrices with Muon and the rest with
            AdamW, regardless of `optim`, in one process without sharding. Small models with random
            weights then learn in half as many steps.
    """

    accelerate_config: str | None = None
    muon: bool = False


@dataclass
class RunConfig(RowOptions, LaunchConfig):
    """Keys of `grpo-ext train`, besides those of `GRPOExtConfig`.

    Args:
        task (`str`): the name of the task; see `grpo_ext.tasks`.
        tasks (`dict`, *optional*): several tasks instead of `task`, each with its own rows, prompts
            and rewards. It maps each task's name to the fields of the task and the keys of
            `grpo_ext.recipe.several_tasks.TaskOptions`. Rows get a column `task`.
        preset (`str`, *optional*): a set of values, each with its source; the recipe's own values
            take precedence. One of `grpo_paper`, `dr_grpo_paper`, `dapo_paper`, or `trl` for plain
            TRL bit for bit. See `grpo_ext.objective.presets`.
        reward_funcs (`list`, *optional*): rewards by name, or as `{name: ..., weight: ..., option:
            ...}`. `None`: the rewards of the task with their weights.
        reward_plugins (`list[str]`, *optional*): Python files that register more rewards.
        resume (`str`, defaults to `"auto"`): where the run starts. `"auto"`: at the newest complete
            checkpoint of `output_dir`, or from scratch if there is none; it is an error if
            `output_dir` holds a run of another recipe. `"never"`: from scratch; existing files move
            to `earlier-1`, `earlier-2`, and so on. Otherwise a checkpoint folder, which may be from
            another recipe.
    """

    task: str = "countdown"
    tasks: dict[str, dict[str, Any] | None] | None = None
    preset: str | None = field(default=None, metadata={"choices": tuple(PRESETS)})
    reward_funcs: list[str | dict[str, Any]] | None = None
    reward_plugins: list[str] | None = None
    resume: str = "auto"
