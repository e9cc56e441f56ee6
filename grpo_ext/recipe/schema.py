"""The dataclasses whose fields are recipe keys.

A key keeps TRL's name and meaning wherever TRL has one. `GRPOExtConfig` has the trainer's
arguments: TRL's `GRPOConfig` with additional fields, which `preset: trl` switches off. `RunConfig`
has the other keys of the command. The fields of the task (see `grpo_ext.tasks`) and of TRL's
`ModelConfig` are also recipe keys.
"""

from dataclasses import dataclass, field, fields
from typing import Any, cast

from trl import GRPOConfig, ScriptArguments

from grpo_ext.common.devices import settings_here
from grpo_ext.objective.presets import PRESETS
from grpo_ext.recipe.advantage_options import AdvantageOptions
from grpo_ext.recipe.episode_options import EpisodeOptions
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.group_options import GroupOptions
from grpo_ext.recipe.log_options import LogOptions
from grpo_ext.recipe.objective_options import ObjectiveOptions
from grpo_ext.recipe.overlap_options import OverlapOptions
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.reward_options import RewardOptions
from grpo_ext.recipe.row_options import RowOptions
from grpo_ext.recipe.safety_options import SafetyOptions
from grpo_ext.recipe.scoring_options import ScoringOptions
from grpo_ext.recipe.step_options import SamplingOptions, SpeedOptions
from grpo_ext.recipe.vllm_options import EngineOptions

# transformers 5.23 has both names for one option
CHECKPOINTING_KEYS = tuple(
    f.name
    for f in fields(GRPOConfig)
    if f.name in ("gradient_checkpointing", "activation_checkpointing")
)


@dataclass
class GRPOExtConfig(
    ObjectiveOptions,
    AdvantageOptions,
    ScoringOptions,
    GroupOptions,
    SamplingOptions,
    OverlapOptions,
    EpisodeOptions,
    SpeedOptions,
    EngineOptions,
    RewardOptions,
    SafetyOptions,
    LogOptions,
    GRPOConfig,
):
    """TRL's `GRPOConfig` with the options of this package.

    Every argument of `GRPOConfig` has its usual meaning. A run of `GRPOExtTrainer` equals one of
    `GRPOTrainer` bit for bit with `loss_normalization="micro_batch"`, `logprob_policy="trl"`,
    `fast_generate=False`, `disable_dropout=False`, with evaluations also
    `per_device_eval_batch_size=8`, with vLLM also `vllm_importance_sampling_mode="sequence_mask"`,
    and the other added options at their defaults.

    Args:
        gradient_checkpointing (`bool`, *optional*): whether the backward pass recomputes
            activations instead of keeping them. `None`: only if the run would otherwise need more
            than half of the device's memory, by the estimate that `grpo-ext plan` prints, and with
            DeepSpeed or FSDP. TRL's default is `True`.

    Raises:
        ValueError: if any argument has a wrong type, choice or range; the message names all of
            them.
    """

    gradient_checkpointing: bool = cast(bool, None)  # the type is TRL's; see `fields.TYPES`

    def __post_init__(self) -> None:
        if problems := field_problems(self, GRPOExtConfig):
            raise RecipeError(problems)
        for name, value in settings_here(self.use_cpu or None, self.bf16).items():
            setattr(self, name, value)
        unset = all(getattr(self, name) is None for name in CHECKPOINTING_KEYS)
        eval_batch_size = self.per_device_eval_batch_size
        if eval_batch_size is None:  # TRL checks it here, and the trainer chooses it later
            self.per_device_eval_batch_size = self.num_generations_eval or self.num_generations
        super().__post_init__()
        self.per_device_eval_batch_size = eval_batch_size
        if unset:  # transformers reads None as False, but the trainer will choose
            for name in CHECKPOINTING_KEYS:
                setattr(self, name, None)


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
