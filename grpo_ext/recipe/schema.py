"""The dataclasses whose fields are recipe keys.

TRL's options keep their names and meanings. `GRPOExtConfig` contains the trainer's arguments: TRL's
`GRPOConfig` with additional fields, which `preset: trl` switches off. `RunConfig` contains the keys
of `grpo-ext train` that do not belong to the trainer. The fields of the task (see `grpo_ext.tasks`)
and of TRL's `ModelConfig` are also recipe keys.
"""

from dataclasses import dataclass, fields

from trl import GRPOConfig, ModelConfig, ScriptArguments, SFTConfig

from grpo_ext.common.devices import settings_here
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.options import LaunchOptions, RunOptions, TrainerOptions
from grpo_ext.recipe.problems import RecipeError

FIELDS = [f.name for f in fields(GRPOConfig)]
# transformers 5.23 has both names for one option, and warns about the old one
RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
CHECKPOINTING_KEYS = tuple(
    name for name in ("gradient_checkpointing", "activation_checkpointing") if name in FIELDS
)


@dataclass
class GRPOExtConfig(TrainerOptions, GRPOConfig):
    """TRL's `GRPOConfig` with the additional options of this package.

    Every argument of `GRPOConfig` keeps its meaning. With `loss_normalization="micro_batch"`,
    `logprob_policy="trl"`, `fast_generate=False`, `disable_dropout=False`, and the other added
    options at their defaults, a run of `GRPOExtTrainer` is bitwise equal to one of `GRPOTrainer`.
    With evaluations, this also requires `per_device_eval_batch_size=8`, and with vLLM,
    `vllm_importance_sampling_mode="sequence_mask"`.

    If there is no accelerator and `use_cpu` is not true, `use_cpu` is set to `True`, and `bf16` to
    `False` if it is `None`.

    Raises:
        ValueError: if any argument has the wrong type or a value that is not allowed; the message
            lists all such arguments.
    """

    def __post_init__(self) -> None:
        if problems := field_problems(self, GRPOExtConfig):
            raise RecipeError(problems)
        for name, value in settings_here(self.use_cpu or None, self.bf16).items():
            setattr(self, name, value)
        unset = all(getattr(self, name) is None for name in CHECKPOINTING_KEYS)
        eval_batch_size = self.per_device_eval_batch_size
        if eval_batch_size is None:  # TRL checks it here, and the trainer chooses it later
            self.per_device_eval_batch_size = self.num_generations_eval or self.num_generations
        for old, new in RENAMED.items():
            if new in FIELDS and getattr(self, new) is None:
                setattr(self, new, getattr(self, old))
        super().__post_init__()
        self.per_device_eval_batch_size = eval_batch_size
        if unset:  # transformers reads None as False, but the trainer will choose
            for name in CHECKPOINTING_KEYS:
                setattr(self, name, None)


@dataclass
class LaunchConfig(LaunchOptions, ScriptArguments):
    """Keys of every training command, except those of its trainer and of `ModelConfig`.

    The `dataset_*` keys are inherited from TRL's `ScriptArguments`.
    """


@dataclass
class RunConfig(RunOptions, ScriptArguments):
    """Keys of `grpo-ext train`, except those of `GRPOExtConfig`, `ModelConfig` and the task."""


# the class of each part of a recipe, except the task of a GRPO recipe
GRPO_CLASSES = {"training": GRPOExtConfig, "run": RunConfig, "model": ModelConfig}
SFT_CLASSES = {"training": SFTConfig, "run": LaunchConfig, "model": ModelConfig}
