"""The recipe keys that this package adds to those of TRL.

`grpo_ext.recipe.schema` adds them to TRL's dataclasses. This module does not import TRL, so a
recipe can be read without importing it.
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
    """The trainer's arguments that are not in TRL's `GRPOConfig` or have a different default there.

    Args:
        gradient_checkpointing (`bool`, *optional*): whether the backward pass recomputes
            activations instead of keeping them. If `None`, it does so if the run would otherwise
            need more than half of the device's memory (without the part that a vLLM engine
            occupies), as estimated by `grpo-ext plan`. `None` also means `True` with DeepSpeed,
            FSDP or `loss_normalization: micro_batch`, and if the lengths of prompts or completions
            are unknown; it always means `False` with `deterministic: true`. TRL's default is
            `True`.
    """

    if not TYPE_CHECKING:  # TRL and transformers type it differently; see `fields.TYPES`
        gradient_checkpointing: bool = None


@dataclass
class LaunchOptions:
    """Keys of every training command that are not in TRL's `ScriptArguments`.

    Args:
        accelerate_config (`str`, *optional*): the accelerate config to launch with: a file, or a
            name in `recipes/accelerate/`. If `None`, it is `single_gpu` if there is a GPU,
            otherwise `cpu`.
        muon (`bool`, defaults to `False`): whether to train hidden weight matrices with Muon and
            all other weights with AdamW, regardless of `optim`. It cannot be combined with an
            adapter, ZeRO or FSDP. In our measurements, small models with random weights learned in
            about half as many steps with it.
    """

    accelerate_config: str | None = None
    muon: bool = False


@dataclass
class RunOptions(RowOptions, LaunchOptions):
    """Keys of `grpo-ext train` that do not belong to the trainer, the model or the task.

    Args:
        task (`str`, defaults to `"countdown"`): the name of the task; see `grpo_ext.tasks`.
        tasks (`dict`, *optional*): several tasks instead of `task`, each with its own rows, prompts
            and rewards. Each entry maps a name, which is also that of the task unless the entry
            sets `task`, to fields of the task and keys of
            `grpo_ext.recipe.several_tasks.TaskOptions`, or to `null`. Rows get a column `task`.
        preset (`str`, *optional*): the name of a set of values; the recipe's own values take
            precedence. `grpo_paper`, `dr_grpo_paper` and `dapo_paper` are the values of these
            papers, and `trl` makes a run bitwise equal to TRL's. `grpo_ext.objective.presets` has
            the source of each value.
        reward_funcs (`list`, *optional*): the rewards, each a name, or a mapping with `name`,
            `weight` and the reward's options. If `None`, the rewards are those of the task, with
            their weights.
        reward_plugins (`list[str]`, *optional*): Python files that register more rewards.
        resume (`str`, defaults to `"auto"`): where the run starts. `"auto"`: at the newest complete
            checkpoint of `output_dir`, or from scratch if there is none; it is an error if
            `output_dir` contains a run of another recipe. `"never"`: from scratch; existing files
            move to `earlier-1`, `earlier-2`, and so on. Any other value is the folder of the
            checkpoint at which the run starts, which may be from another recipe.
    """

    task: str = "countdown"
    tasks: dict[str, dict[str, Any] | None] | None = None
    preset: str | None = field(default=None, metadata={"choices": tuple(PRESETS)})
    reward_funcs: list[str | dict[str, Any]] | None = None
    reward_plugins: list[str] | None = None
    resume: str = "auto"
