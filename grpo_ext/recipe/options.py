"""The options of this package that are recipe keys, without the options of TRL.

`grpo_ext.recipe.schema` adds them to TRL's dataclasses. Nothing here imports TRL, so that a recipe
can be read without it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_ext.objective.presets import PRESETS
from grpo_ext.recipe.advantage_options import AdvantageOptions
from grpo_ext.recipe.deterministic_options import DeterministicOptions
from grpo_ext.recipe.episode_options import EpisodeOptions
from grpo_ext.recipe.group_options import GroupOptions
from grpo_ext.recipe.log_options import LogOptions
from grpo_ext.recipe.objective_options import ObjectiveOptions
from grpo_ext.recipe.overlap_options import OverlapOptions
from grpo_ext.recipe.reward_options import RewardOptions
from grpo_ext.recipe.row_options import RowOptions
from grpo_ext.recipe.safety_options import SafetyOptions
from grpo_ext.recipe.scoring_options import ScoringOptions
from grpo_ext.recipe.step_options import SamplingOptions, SpeedOptions
from grpo_ext.recipe.vllm_options import EngineOptions


@dataclass
class TrainerOptions(
    ObjectiveOptions,
    AdvantageOptions,
    ScoringOptions,
    DeterministicOptions,
    GroupOptions,
    SamplingOptions,
    OverlapOptions,
    EpisodeOptions,
    SpeedOptions,
    EngineOptions,
    RewardOptions,
    SafetyOptions,
    LogOptions,
):
    """The trainer's arguments that TRL's `GRPOConfig` lacks or has with another default.

    Args:
        gradient_checkpointing (`bool`, *optional*): whether the backward pass recomputes
            activations instead of keeping them. `None`: if the run would otherwise need more than
            half of the device's memory (without the part of a vLLM engine on it), by the estimate
            that `grpo-ext plan` prints; always with DeepSpeed, FSDP or `loss_normalization:
            micro_batch`, and if the lengths of prompts or completions are unknown; never with
            `deterministic: true`. TRL's default is `True`.
    """

    if not TYPE_CHECKING:  # TRL and transformers type it differently; see `fields.TYPES`
        gradient_checkpointing: bool = None


@dataclass
class LaunchOptions:
    """Keys of every training command that TRL's `ScriptArguments` lacks.

    Args:
        accelerate_config (`str`, *optional*): the accelerate config to launch with: a file, or a
            name in `recipes/accelerate/`. `None`: `cpu` without a GPU, else `single_gpu`.
        muon (`bool`, defaults to `False`): train hidden weight matrices with Muon and the rest with
            AdamW, regardless of `optim`; not with an adapter, ZeRO or FSDP. Small models with
            random weights then learn in half as many steps.
    """

    accelerate_config: str | None = None
    muon: bool = False


@dataclass
class RunOptions(RowOptions, LaunchOptions):
    """Keys of `grpo-ext train` that do not belong to the trainer, the model or the task.

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
            `output_dir` contains a run of another recipe. `"never"`: from scratch; existing files
            move to `earlier-1`, `earlier-2`, and so on. Otherwise a checkpoint folder, which may be
            from another recipe.
    """

    task: str = "countdown"
    tasks: dict[str, dict[str, Any] | None] | None = None
    preset: str | None = field(default=None, metadata={"choices": tuple(PRESETS)})
    reward_funcs: list[str | dict[str, Any]] | None = None
    reward_plugins: list[str] | None = None
    resume: str = "auto"
