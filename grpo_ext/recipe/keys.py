"""The keys of each kind of recipe, as the fields of dataclasses.

If `trl_fields` lists the fields of the installed TRL, TRL is not imported. Otherwise, the
dataclasses that a run builds are used, for which TRL is imported.
"""

from collections.abc import Container
from dataclasses import dataclass

from grpo_ext.common.modules import versions
from grpo_ext.recipe import trl_fields
from grpo_ext.recipe.options import LaunchOptions, RunOptions, TrainerOptions

BUILT = "parallelism_config"  # its mapping becomes a dataclass of accelerate, which checks it


@dataclass(init=False, repr=False, eq=False)
class TrainerKeys(TrainerOptions, trl_fields.GRPOConfig):
    """The fields of `GRPOExtConfig`."""


@dataclass(init=False, repr=False, eq=False)
class LaunchKeys(LaunchOptions, trl_fields.ScriptArguments):
    """The fields of `LaunchConfig`."""


@dataclass(init=False, repr=False, eq=False)
class RunKeys(RunOptions, trl_fields.ScriptArguments):
    """The fields of `RunConfig`."""


GRPO_KEYS = {"training": TrainerKeys, "run": RunKeys, "model": trl_fields.ModelConfig}
SFT_KEYS = {"training": trl_fields.SFTConfig, "run": LaunchKeys, "model": trl_fields.ModelConfig}


def keys_of(grpo: bool, keys: Container[str] = ()) -> dict[str, type]:
    """Return the dataclass that lists the keys of each part of a recipe, except its task.

    The parts are `"training"`, `"run"` and `"model"`.

    Args:
        grpo: whether the recipe is for GRPO; otherwise it is for supervised training.
        keys: the keys that the recipe sets. If `parallelism_config` is one of them, TRL is always
            imported.
    """
    if fields_are_known() and BUILT not in keys:
        return {**(GRPO_KEYS if grpo else SFT_KEYS)}
    from grpo_ext.recipe.schema import GRPO_CLASSES, SFT_CLASSES

    return {**(GRPO_CLASSES if grpo else SFT_CLASSES)}


def fields_are_known() -> bool:
    """Return whether `trl_fields` lists the fields of the installed TRL and transformers.

    This is true only for the versions in `trl_fields.VERSIONS`, because other versions may have
    more fields.
    """
    installed = versions()
    return all(installed.get(package) in known for package, known in trl_fields.VERSIONS.items())
